"""Validation rules of every Plan.

One function per part of the plan, in the order of its fields. Every error names the path of the
mistake, which is the same in Python and JSON: ``replicas[1].stages[0].device``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from evener.errors import PlanError, did_you_mean
from evener.plan.fields import VERSION, PlanFields
from evener.plan.names import HOST, parse_device_name
from evener.plan.parts import (
    BatchNormName,
    OwnerRule,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    ScheduleName,
    Stage,
)
from evener.plan.shares import check_shares
from evener.plan.typed_values import (
    number_at,
    object_at,
    text_at,
    tuple_at,
    whole_number_at,
    wrong_type,
)

_OWNER_WORDS = ("sharded", "central")
_MOST_BYTES = 2**63 - 1


def validate(plan: PlanFields) -> None:
    """Refuse an inconsistent plan.

    Raises:
        PlanError: With the path, the reason and a remedy.
    """
    check_version(whole_number_at("version", plan.version))
    names = _check_devices(plan.devices)
    _check_replicas(plan.replicas, names)
    _check_owners(plan.owners, names)
    for index, pattern in enumerate(tuple_at("recompute", plan.recompute, str)):
        text_at(f"recompute[{index}]", pattern)
    _check_batch_norm(plan.batch_norm)
    _check_predicted(plan.predicted, names)
    for index, rejected in enumerate(tuple_at("rejected", plan.rejected, Rejected)):
        text_at(f"rejected[{index}].layout", rejected.layout)
        text_at(f"rejected[{index}].reason", rejected.reason)


def check_version(version: int) -> None:
    """Refuse an unsupported version.

    Raises:
        PlanError: PLAN-022.
    """
    if version != VERSION:
        raise PlanError(
            "PLAN-022",
            f"The plan has version {version}; this version of evener reads version {VERSION}.",
            why="it was written by another version of evener."
            if version > VERSION
            else "there is no such version.",
            fix="install a newer version of evener."
            if version > VERSION
            else f"write version = {VERSION}.",
        )


def missing_devices(needed: Sequence[str], present: Sequence[str]) -> None:
    """Refuse devices of which some are missing.

    Raises:
        PlanError: PLAN-029 naming the missing devices.
    """
    missing = [name for name in needed if name not in present]
    if not missing:
        return
    here = ", ".join(present) or "no device"
    instead = list(present) or ["cpu:0"]
    raise PlanError(
        "PLAN-029",
        f"The plan needs devices that are not here: {', '.join(missing)}.",
        why=f"it was made for {', '.join(needed)}; this machine has {here}.",
        fix=_fix_of_missing(missing, instead),
    )


def _fix_of_missing(missing: Sequence[str], instead: Sequence[str]) -> str:
    here = f"make a plan for the devices here: Plan.data_parallel({list(instead)})"
    workers = {name.partition("/")[0] for name in missing if name.startswith("worker:")}
    if workers:
        return (
            "start its workers, which together have these devices: evener launch --plan plan.json, "
            f"with --workers N on one machine, or under a scheduler on several; or {here}."
        )
    return f"run it on a machine with these devices, or {here}."


def _check_devices(devices: object) -> tuple[str, ...]:
    items = tuple_at("devices", devices, PlanDevice)
    if not items:
        raise PlanError(
            "PLAN-004",
            "The plan has no devices.",
            why="devices is empty; a plan needs at least one device.",
            fix="name at least one, for example Plan.data_parallel(['cpu:0']).",
        )
    seen: dict[str, int] = {}
    for index, device in enumerate(items):
        _check_device(f"devices[{index}]", device)
        if device.name in seen:
            raise PlanError(
                "PLAN-002",
                f"devices[{index}].name names {device.name} a second time.",
                why=f"devices[{seen[device.name]}] is {device.name} already.",
                fix="list each device once; parts of one GPU are separate devices: the spec "
                "'gpu:0@10GiB,gpu:0@5GiB' makes gpu:0 and gpu:1.",
            )
        seen[device.name] = index
    return tuple(seen)


def _check_device(path: str, device: PlanDevice) -> None:
    name = text_at(f"{path}.name", device.name)
    kind = parse_device_name(name, path=f"{path}.name").kind
    if text_at(f"{path}.kind", device.kind) != kind:
        raise PlanError(
            "PLAN-026",
            f"{path}.kind is {device.kind!r}, but {name} is a {kind}.",
            why="the kind of a device is 'gpu' or 'cpu', the one in its name.",
            fix=f"write {path}.kind = {kind!r}, or PlanDevice.named({name!r}).",
        )
    if device.memory_bytes is None:
        return
    if not 1 <= whole_number_at(f"{path}.memory_bytes", device.memory_bytes) <= _MOST_BYTES:
        raise PlanError(
            "PLAN-027",
            f"{path}.memory_bytes is {device.memory_bytes}.",
            why=f"the memory of {name} must be from 1 to {_MOST_BYTES} bytes.",
            fix="write the bytes the plan may use, or None (in JSON: null) if unknown.",
        )


def _check_replicas(replicas: object, names: Sequence[str]) -> None:
    items = tuple_at("replicas", replicas, Replica)
    if not items:
        raise PlanError(
            "PLAN-005",
            "The plan has no replicas.",
            why="replicas is empty, so no samples would be computed.",
            fix=f"add at least one, for example Plan.data_parallel({list(names)}).",
        )
    for index, replica in enumerate(items):
        path = f"replicas[{index}]"
        _check_micro_batches(path, replica)
        _check_schedule(f"{path}.schedule", replica.schedule)
        stages = tuple_at(f"{path}.stages", replica.stages, Stage)
        _check_stages(path, stages, names)
        _check_layers(path, stages)
    check_shares([replica.share for replica in items], path="replicas[{}].share")


def _check_micro_batches(path: str, replica: Replica) -> None:
    count = whole_number_at(f"{path}.num_micro_batches", replica.num_micro_batches)
    in_flight = whole_number_at(f"{path}.in_flight", replica.in_flight)
    if count < 1:
        raise PlanError(
            "PLAN-013",
            f"{path}.num_micro_batches is {count}.",
            why="a replica splits its samples into at least 1 micro-batch.",
            fix=f"write {path}.num_micro_batches = 1 to compute them all at once.",
        )
    if not 1 <= in_flight <= count:
        raise PlanError(
            "PLAN-014",
            f"{path}.in_flight is {in_flight}, outside 1 to {count}.",
            why="in_flight is how many micro-batches are in progress at once, from 1 to "
            f"num_micro_batches ({count}).",
            fix=f"write {path}.in_flight = {min(max(in_flight, 1), count)}"
            + (f", or num_micro_batches = {in_flight}." if in_flight > 1 else "."),
        )


def _check_schedule(path: str, schedule: object) -> None:
    known = get_args(ScheduleName)
    name = text_at(path, schedule)
    if name not in known:
        raise PlanError(
            "PLAN-034",
            f"{path} is {name!r}, which is not a schedule.{did_you_mean(name.lower(), known)}",
            why=f"the schedules are {', '.join(known)}.",
            fix=f"write {path} = {known[0]!r}, or leave it out.",
        )


def _check_batch_norm(name: object) -> None:
    known = get_args(BatchNormName)
    text = text_at("batch_norm", name)
    if text not in known:
        raise PlanError(
            "PLAN-035",
            f"batch_norm is {text!r}, which is not known.{did_you_mean(text.lower(), known)}",
            why=f"BatchNormalization is {' or '.join(map(repr, known))}: its statistics "
            "are those of the whole batch, or of the samples of each device.",
            fix=f"write batch_norm = {known[0]!r}, or leave it out.",
        )


def _check_stages(path: str, stages: Sequence[Stage], names: Sequence[str]) -> None:
    if not stages:
        raise PlanError(
            "PLAN-006",
            f"{path} has no stages.",
            why="a replica without a stage has no device that computes its samples.",
            fix=f"give it one, for example stages=(Stage(device={names[0]!r}),).",
        )
    for index, stage in enumerate(stages):
        check_is_among(f"{path}.stages[{index}].device", stage.device, names)


def _check_layers(path: str, stages: Sequence[Stage]) -> None:
    seen: dict[str, str] = {}
    for index, stage in enumerate(stages):
        here = f"{path}.stages[{index}].layers"
        patterns = tuple_at(here, stage.layers, str)
        if not patterns:
            raise PlanError(
                "PLAN-015",
                f"{here} is empty.",
                why="a stage without layers computes nothing.",
                fix=f"list its layers, or remove stages[{index}] from {path}.",
            )
        for number, pattern in enumerate(patterns):
            path_of_pattern = f"{here}[{number}]"
            text_at(path_of_pattern, pattern)
            _check_pattern(path_of_pattern, pattern, seen, num_stages=len(stages))
            seen[pattern] = path_of_pattern


def _check_pattern(here: str, pattern: str, seen: dict[str, str], *, num_stages: int) -> None:
    if num_stages > 1 and pattern.strip("*") == "":
        raise PlanError(
            "PLAN-016",
            f"{here} is {pattern!r}, all layers, in a replica of {num_stages} stages.",
            why="with several stages every layer must belong to one of them, "
            "and '*' leaves none for the other stages.",
            fix=f"name the layers of each stage, for example {here} = 'encoder_*'.",
        )
    if pattern in seen:
        raise PlanError(
            "PLAN-017",
            f"{here} names {pattern!r} again.",
            why=f"{seen[pattern]} has it already, and each layer belongs to one stage.",
            fix=f"keep {pattern!r} in one of the two stages.",
        )


def check_is_among(path: str, device: object, names: Sequence[str]) -> None:
    """Refuse a device that the plan does not have.

    Raises:
        PlanError: PLAN-003 with the closest name, PLAN-020 if it is not a text.
    """
    name = text_at(path, device)
    if name in names:
        return
    raise PlanError(
        "PLAN-003",
        f"{path} is {name!r}, which is not a device of the plan."
        f"{did_you_mean(name.lower(), names)}",
        why=f"the devices of the plan are {', '.join(names)}.",
        fix=f"write one of these, for example {names[0]!r}, or add {name!r} to devices.",
    )


def _check_owners(owners: object, names: Sequence[str]) -> None:
    if isinstance(owners, str):
        if owners not in _OWNER_WORDS:
            raise PlanError(
                "PLAN-019",
                f"owners is {owners!r}.{did_you_mean(owners.lower(), _OWNER_WORDS)}",
                why="as a string, owners is 'sharded' (spread over the devices) or 'central' "
                "(on the host).",
                fix="write owners='sharded', or rules: "
                f"(OwnerRule(pattern='*', device={names[0]!r}),).",
            )
        return
    if not isinstance(owners, tuple):
        raise wrong_type("owners", "'sharded', 'central' or a list of rules", owners)
    rules = tuple_at("owners", owners, OwnerRule)  # pyright: ignore[reportUnknownArgumentType]
    if not rules:
        raise PlanError(
            "PLAN-031",
            "owners has no rules.",
            why="the list is empty, so no variable would have an owner.",
            fix="write owners='sharded', or at least one rule.",
        )
    for index, rule in enumerate(rules):
        text_at(f"owners[{index}].pattern", rule.pattern)
        if rule.device != HOST:
            check_is_among(f"owners[{index}].device", rule.device, names)


def _check_predicted(predicted: object, names: Sequence[str]) -> None:
    if predicted is None:
        return
    if not isinstance(predicted, Predicted):
        raise wrong_type("predicted", "a Predicted or None", predicted)
    seconds = number_at("predicted.step_seconds", predicted.step_seconds)
    _check_prediction("predicted.step_seconds", seconds)
    for name, num_bytes in object_at("predicted.peak_bytes", predicted.peak_bytes).items():
        if name != HOST:
            check_is_among("a key of predicted.peak_bytes", name, names)
        path = f"predicted.peak_bytes[{name!r}]"
        _check_prediction(path, whole_number_at(path, num_bytes))
    for name, busy in object_at("predicted.busy_seconds", predicted.busy_seconds).items():
        check_is_among("a key of predicted.busy_seconds", name, names)
        path = f"predicted.busy_seconds[{name!r}]"
        _check_prediction(path, number_at(path, busy))
    if predicted.batch_size is not None:
        path = "predicted.batch_size"
        _check_prediction(path, whole_number_at(path, predicted.batch_size))


def _check_prediction(path: str, value: float) -> None:
    # NaN fails this too.
    if 0 <= value <= _MOST_BYTES:
        return
    raise PlanError(
        "PLAN-028",
        f"{path} is {value}.",
        why="predicted seconds, bytes and samples must be finite numbers, 0 or more.",
        fix="set predicted to None (in JSON: null) if it is not known.",
    )
