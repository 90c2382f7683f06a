"""The Plan: a frozen value that people or the planner write and the engine reads.

Values come from Python or JSON, every rule between them is checked, and each error names the path
of the mistake, which is the same in Python and JSON: ``replicas[1].stages[0].device``.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, TypeVar, cast, get_args

from evener.errors import PlanError, did_you_mean
from evener.plan.parts import (
    HOST,
    HOST_DEVICE,
    BatchNormName,
    OwnerRule,
    Owners,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    ScheduleName,
    Stage,
    as_double,
    as_tuple,
    as_whole,
    items_at,
    list_at,
    number_at,
    object_at,
    owner_of,
    owner_rules,
    parse_device_name,
    text_at,
    tuple_at,
    whole_number_at,
    wrong_type,
)

# Fields of a plan, and what follows from them; the parts that check and show a plan read them.

VERSION = 1
"""Version of the JSON form of plans."""

Layout = Literal["one device", "data parallel", "central storage", "pipeline", "hybrid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFields:
    """Fields of a `Plan`, which documents and checks them."""

    devices: tuple[PlanDevice, ...]
    replicas: tuple[Replica, ...]
    owners: Owners = "sharded"
    recompute: tuple[str, ...] = ()
    batch_norm: BatchNormName = "synchronized"
    predicted: Predicted | None = None
    rejected: tuple[Rejected, ...] = ()
    version: int = VERSION

    @property
    def layout(self) -> Layout:
        """The layout in words.

        One replica is ``"one device"`` or, with several stages, ``"pipeline"``. Several
        replicas are ``"hybrid"`` if one of them has several stages; ``"central storage"``
        if one device or the host owns all variables; else ``"data parallel"``.
        """
        if len(self.replicas) == 1:
            return "pipeline" if self.is_staged else "one device"
        if self.is_staged:
            return "hybrid"
        return "data parallel" if self.central_device is None else "central storage"

    @property
    def is_staged(self) -> bool:
        """Whether a replica has several stages."""
        return any(len(replica.stages) > 1 for replica in self.replicas)

    @property
    def is_scheduled(self) -> bool:
        """Whether replicas have several stages, micro-batches or recomputed layers."""
        micro_batches = any(replica.num_micro_batches > 1 for replica in self.replicas)
        return self.is_staged or micro_batches or bool(self.recompute)

    @property
    def central_device(self) -> str | None:
        """The device that owns all variables, or None if more than one may own some."""
        if self.owners == "central":
            return HOST_DEVICE
        if self.owners == "sharded":
            return self.devices[0].name if len(self.devices) == 1 else None
        # Without a catch-all rule, any device may own the remaining variables.
        takes_all = any(rule.pattern.strip("*") == "" for rule in self.owners)
        used = {HOST_DEVICE if rule.device == HOST else rule.device for rule in self.owners}
        return used.pop() if takes_all and len(used) == 1 else None

    @property
    def device_names(self) -> tuple[str, ...]:
        """The names of the devices, in order."""
        return tuple(device.name for device in self.devices)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of every replica, in order, not normalized."""
        return tuple(replica.share for replica in self.replicas)

    @property
    def fractions(self) -> tuple[float, ...]:
        """The shares divided by their sum."""
        total = sum(self.shares)
        return tuple(share / total for share in self.shares)

    def owner_of(self, path: str) -> str | None:
        """Return the device that owns a variable, or None if the plan leaves it open."""
        if self.owners == "central":
            return HOST_DEVICE
        return None if self.owners == "sharded" else owner_of(path, self.owners)


# Shares: the part of every batch that each replica computes.

# Up to these limits num_samples * share is finite, and the sizes add up exactly in doubles.
_LARGEST_SUM = 1e100
_MOST_SAMPLES = 2**50


def split_batch(num_samples: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Split a batch by shares, by rounding the cumulative shares.

    ::

        shares       320        192            cut_k = floor(n * cumulative_k / total + 0.5)
                 |----------|-------|
        cuts     0         cut_1   cut_2 = n   size_k = cut_k - cut_(k-1)

    The sizes add up to ``num_samples``, each is within 1 of its ideal part, and a share of
    0 gets no sample. The cuts never go back when ``num_samples`` grows; a single size may
    (of three even shares the middle one gets the only sample of a batch of 1, and none of
    a batch of 2).

    Args:
        num_samples: Samples in the batch, from 0 to 2**50.
        shares: Relative parts, finite and 0 or more, with a sum above 0.

    Returns:
        The number of samples for each share.

    Raises:
        PlanError: PLAN-030 for a wrong number of samples, PLAN-007 to PLAN-009 for wrong
            shares.

    >>> split_batch(512, [320, 192]), split_batch(10, [1, 1, 1])
    ((320, 192), (3, 4, 3))
    """
    checked = check_shares(shares)
    count = whole_number_at("num_samples", as_whole(num_samples))
    if not 0 <= count <= _MOST_SAMPLES:
        raise PlanError(
            "PLAN-030",
            f"A batch of {count} samples cannot be split.",
            why=f"the number of samples must be from 0 to {_MOST_SAMPLES}.",
            fix=f"give the size of the global batch, for example split_batch(512, {checked}).",
        )
    cumulative = tuple(itertools.accumulate(checked))
    cuts = [0, *(math.floor(count * part / cumulative[-1] + 0.5) for part in cumulative)]
    return tuple(after - before for before, after in itertools.pairwise(cuts))


def check_shares(
    shares: Sequence[float],
    *,
    num_expected: int | None = None,
    expected: str = "devices",
    path: str = "shares[{}]",
) -> tuple[float, ...]:
    """Return shares as doubles, or raise an error.

    Args:
        shares: Relative parts, finite and 0 or more, with a sum above 0.
        num_expected: Required number of shares; None for any number.
        expected: Noun that ``num_expected`` counts, ``"devices"`` or ``"replicas"``.
        path: Path of a share in the plan, with ``{}`` for its number.

    Raises:
        PlanError: PLAN-010 for more shares than devices, PLAN-011 for fewer, PLAN-020 for
            a value that is not a number, PLAN-007 for a negative share, PLAN-008 for one that is
            not finite, PLAN-009 if they add up to 0.
    """
    doubles = [as_double(share) for share in items_at("shares", shares)]
    if num_expected is not None and len(doubles) != num_expected:
        raise _wrong_count(doubles, num_expected, expected)
    checked = tuple(number_at(path.format(index), share) for index, share in enumerate(doubles))
    for index, share in enumerate(checked):
        _check_share(path.format(index), share)
    if not sum(checked) > 0:
        raise PlanError(
            "PLAN-009",
            f"The shares add up to 0: {list(checked)}.",
            why="at least one share must be greater than 0.",
            fix=f"write for example {[1.0] * max(1, len(checked))}.",
        )
    return checked


def _check_share(path: str, share: float) -> None:
    if share < 0 and not math.isinf(share):
        raise PlanError(
            "PLAN-007",
            f"{path} is {share:g}, which is negative.",
            why="a share is a relative part of each batch, so it must be 0 or more.",
            fix=f"write {path} = {-share:g}, or 0 to leave the device idle.",
        )
    if not abs(share) <= _LARGEST_SUM:
        raise PlanError(
            "PLAN-008",
            f"{path} is {share:g}, which is not a usable number.",
            why=f"a share must be a finite number from 0 to {_LARGEST_SUM:g}; if it is computed "
            "from a measured speed, the time may have been 0.",
            fix=f"write a number relative to the other shares, for example {path} = 1.",
        )


def _wrong_count(shares: Sequence[object], num_expected: int, expected: str) -> PlanError:
    num_more = len(shares) - num_expected
    right = [*shares[:num_expected], *[0] * -num_more]
    note = "" if num_more > 0 else "; a share of 0 means no samples"
    return PlanError(
        "PLAN-010" if num_more > 0 else "PLAN-011",
        f"There are {'more' if num_more > 0 else 'fewer'} shares than {expected}: "
        f"{len(shares)} and {num_expected}.",
        why=f"each of the {expected} needs exactly one share, in order.",
        fix=f"give as many shares as {expected}, for example {right}{note}.",
    )


# Validation rules of every Plan.
#
# One function per part of the plan, in the order of its fields. Every error names the path of the
# mistake, which is the same in Python and JSON: ``replicas[1].stages[0].device``.

_OWNER_WORDS = ("sharded", "central")
_MOST_BYTES = 2**63 - 1


def validate(plan: PlanFields) -> None:
    """Refuse an inconsistent plan."""
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
    """Refuse an unsupported version."""
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
    """Refuse devices of which some are missing."""
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
    """Refuse a device that the plan does not have."""
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


# JSON form of plans, version 1.
#
# Only objects, lists and keys are checked here. The Plan that is made from them checks the values,
# and its errors name the same paths.

T = TypeVar("T")

_PLAN_KEYS = (
    "version",
    "devices",
    "replicas",
    "owners",
    "recompute",
    "batch_norm",
    "predicted",
    "rejected",
)
REQUIRED_PLAN_KEYS = ("version", "devices", "replicas", "owners")
"""Keys that the JSON of a plan must have."""

_SCHEMA_KEY = "$schema"


def write_plan(plan: PlanFields) -> str:
    """Return a plan as JSON, indented, its keys in a fixed order."""
    fields = {
        "version": plan.version,
        "devices": [dataclasses.asdict(device) for device in plan.devices],
        "owners": _written_owners(plan),
        "replicas": [_written_replica(replica) for replica in plan.replicas],
        "recompute": plan.recompute,
        "batch_norm": plan.batch_norm,
        "predicted": _written_prediction(plan.predicted),
        "rejected": [dataclasses.asdict(rejected) for rejected in plan.rejected],
    }
    return json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False)


def read_fields(text: str) -> dict[str, Any]:
    """Return the arguments of the Plan of a JSON text.

    The key ``$schema``, by which editors find the schema of plans, is ignored.
    """
    fields = object_at("the plan", _parsed(text))
    # Check the version first: a newer one may have keys that are unknown here.
    if "version" in fields:
        check_version(whole_number_at("version", fields["version"]))
    if _SCHEMA_KEY in fields:
        text_at(_SCHEMA_KEY, fields[_SCHEMA_KEY])
        fields = {key: value for key, value in fields.items() if key != _SCHEMA_KEY}
    _check_keys("", fields, required=REQUIRED_PLAN_KEYS, known=_PLAN_KEYS)
    owners = fields["owners"]
    return {
        **fields,
        "devices": _read_list("devices", fields["devices"], _reader(PlanDevice)),
        "owners": owners
        if isinstance(owners, str)
        else _read_list("owners", owners, _reader(OwnerRule)),
        "replicas": _read_list("replicas", fields["replicas"], _read_replica),
        "recompute": tuple(list_at("recompute", fields.get("recompute", []))),
        "predicted": _read_prediction(fields.get("predicted")),
        "rejected": _read_list("rejected", fields.get("rejected", []), _reader(Rejected)),
    }


def _written_owners(plan: PlanFields) -> object:
    if isinstance(plan.owners, str):
        return plan.owners
    return [dataclasses.asdict(rule) for rule in plan.owners]


def _written_replica(replica: Replica) -> dict[str, object]:
    return {
        "share": _written_number(replica.share),
        "num_micro_batches": replica.num_micro_batches,
        "in_flight": replica.in_flight,
        "schedule": replica.schedule,
        "stages": [{"device": stage.device, "layers": stage.layers} for stage in replica.stages],
    }


def _written_prediction(predicted: Predicted | None) -> object:
    if predicted is None:
        return None
    return {
        "step_seconds": _written_number(predicted.step_seconds),
        "peak_bytes": dict(predicted.peak_bytes),
        "busy_seconds": {
            name: _written_number(seconds) for name, seconds in predicted.busy_seconds.items()
        },
        "batch_size": predicted.batch_size,
    }


def _written_number(number: float) -> float:
    """Return 320 instead of 320.0 if a double represents the integer exactly."""
    return int(number) if number.is_integer() and 0 <= number < 2**53 else number


def _parsed(text: object) -> object:
    try:
        if not isinstance(text, str):
            raise TypeError(f"the value is of type {type(text).__name__}, not text")
        return json.loads(text, object_pairs_hook=_unique_keys)
    except PlanError:
        raise
    # ValueError: not JSON, or a number of thousands of digits; RecursionError: nested too deep.
    except (ValueError, TypeError, RecursionError) as error:
        raise PlanError(
            "PLAN-021",
            "The text of the plan is not JSON.",
            why=f"{error}.",
            fix="use a text that was written by Plan.to_json().",
        ) from error


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for key, value in pairs:
        if key in fields:
            raise PlanError(
                "PLAN-025",
                f"The key {key!r} is there twice in one object.",
                why=f"its values are {fields[key]!r} and {value!r}; a key can have only one value.",
                fix=f"keep one {key!r}.",
            )
        fields[key] = value
    return fields


def _check_keys(
    path: str, fields: Mapping[str, object], *, required: tuple[str, ...], known: tuple[str, ...]
) -> None:
    where = path or "the plan"
    for key in fields:
        if key not in known:
            raise PlanError(
                "PLAN-023",
                f"{where} has the unknown key {key!r}.{did_you_mean(key, known)}",
                why=f"the keys here are {', '.join(known)}.",
                fix=f"rename {key!r} or remove it.",
            )
    for key in required:
        if key not in fields:
            raise PlanError(
                "PLAN-024",
                f"{where} is missing the key {key!r}.",
                why=f"the required keys are {', '.join(required)}.",
                fix=f"add {f'{path}.{key}' if path else key}.",
            )


def _read_list(path: str, value: object, read: Callable[[str, object], T]) -> tuple[T, ...]:
    items = enumerate(list_at(path, value))
    return tuple(read(f"{path}[{index}]", item) for index, item in items)


def _reader(part: type[T]) -> Callable[[str, object], T]:
    """Return a function that reads a part whose fields are plain values."""

    def read(path: str, value: object) -> T:
        return part(**_read_object(part, path, value))

    return read


def _read_object(part: type[Any], path: str, value: object) -> dict[str, Any]:
    """Return the fields of a part; those without a default are required."""
    fields = object_at(path, value)
    declared = dataclasses.fields(part)
    required = tuple(field.name for field in declared if field.default is dataclasses.MISSING)
    _check_keys(path, fields, required=required, known=tuple(field.name for field in declared))
    return dict(fields)


def _read_replica(path: str, value: object) -> Replica:
    fields = _read_object(Replica, path, value)
    fields["stages"] = _read_list(f"{path}.stages", fields["stages"], _reader(Stage))
    return Replica(**fields)


def _read_prediction(value: object) -> Predicted | None:
    return None if value is None else _reader(Predicted)("predicted", value)


# JSON Schema of plans, for editors and other programs.
#
# The schema is the file ``plan.schema.json`` in this folder, which ``tools/plan_schema.py``
# generates
# from the dataclasses of a plan.

SCHEMA_FILE = "plan.schema.json"
"""Name of the file, in this folder."""


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of plans in version 1.

    It defines keys, types, ranges of numbers (seconds, bytes, samples) and allowed words. Only
    `Plan.from_json` checks rules between fields, such as that a stage names a device of the plan.

    Returns:
        A new value of dicts, lists, text and numbers, as ``json.loads`` makes it.

    >>> sorted(plan_schema()["required"])
    ['devices', 'owners', 'replicas', 'version']
    """
    return cast("dict[str, Any]", json.loads(plan_schema_text()))


def plan_schema_text() -> str:
    """Return the JSON Schema as text, to be written to a file."""
    return resources.files("evener.plan").joinpath(SCHEMA_FILE).read_text(encoding="utf-8")


# Plan: owners of the variables, and devices that compute the samples.


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(PlanFields):
    """Plan of a distributed training step: owners of the variables, and devices that compute.

    A plan is checked for consistency when it is made; `check_devices` compares it with the
    devices of the machine. Plans are compared by value and hashable.

    Args:
        devices: Devices that the plan is for, at least one.
        replicas: Replicas of the model, at least one; their shares add up to more than 0.
        owners: Owners of the variables: ``"sharded"`` (spread over the devices), ``"central"`` (on
            the host), or rules of which the first that matches wins.
        recompute: Patterns of layers whose activations are recomputed in the backward pass instead
            of being saved.
        batch_norm: Samples of the statistics of BatchNormalization. ``"synchronized"``: the global
            batch, as on one device; ``"per_device"``: the samples that a device computes at once,
            which is cheaper, but the only choice whose results differ from those of one device.
        predicted: Prediction, if a planner made the plan.
        rejected: Rejected alternatives, with reasons.
        version: Version of the JSON form of plans, 1.

    Raises:
        PlanError: PLAN-001 to PLAN-035 if the plan is inconsistent.
            ``evener doctor --explain CODE`` explains each.

    >>> plan = Plan.data_parallel(["gpu:0", "gpu:1"], shares=[320, 192])
    >>> plan.layout, plan.shares
    ('data parallel', (320.0, 192.0))
    """

    def __post_init__(self) -> None:
        """Normalize lists, and refuse an inconsistent plan."""
        for field in ("devices", "replicas", "owners", "recompute", "rejected"):
            object.__setattr__(self, field, as_tuple(getattr(self, field)))
        object.__setattr__(self, "version", as_whole(self.version))
        validate(self)

    @classmethod
    def data_parallel(
        cls,
        devices: Sequence[str | PlanDevice],
        *,
        shares: Sequence[float] | None = None,
        num_micro_batches: int = 1,
        owners: Owners | Mapping[str, str] = "sharded",
        batch_norm: BatchNormName = "synchronized",
    ) -> Plan:
        """Return the plan in which every device computes a whole replica.

        Args:
            devices: Device names, or devices with their memory; at least one.
            shares: Shares of the devices, 0 or more; None for even shares.
            num_micro_batches: Micro-batches per device. They are computed one after the other, so
                only the activations of one are in memory at a time.
            owners: Owners as in `Plan`, or a mapping from pattern to device.
            batch_norm: Statistics of BatchNormalization, as in `Plan`.

        Raises:
            PlanError: PLAN-001, PLAN-002 or PLAN-004 for wrong devices, PLAN-007 to PLAN-011 for
                wrong shares, PLAN-013 for less than one micro-batch, PLAN-003, PLAN-019 or PLAN-031
                for wrong owners.

        >>> Plan.data_parallel(["cpu:0", "cpu:1"], owners="central").layout
        'central storage'
        """
        listed = items_at("devices", devices)
        named = tuple(_device(f"devices[{i}]", device) for i, device in enumerate(listed))
        given = [1.0] * len(named) if shares is None else shares
        # Without devices the validation of the plan raises the error.
        checked = check_shares(given, num_expected=len(named)) if named else ()
        return cls(
            devices=named,
            replicas=tuple(
                Replica(
                    share=share,
                    num_micro_batches=num_micro_batches,
                    stages=(Stage(device=device.name),),
                )
                for share, device in zip(checked, named, strict=True)
            ),
            owners=owner_rules(owners) if isinstance(owners, Mapping) else owners,
            batch_norm=batch_norm,
        )

    @classmethod
    def pipeline(
        cls,
        stages: Mapping[str, str | Sequence[str]] | Sequence[tuple[str, str | Sequence[str]]],
        *,
        num_micro_batches: int = 1,
        in_flight: int | None = None,
        schedule: ScheduleName = "1f1b",
        recompute: Sequence[str] = (),
        owners: Owners | Mapping[str, str] = "sharded",
        batch_norm: BatchNormName = "synchronized",
    ) -> Plan:
        """Return the plan of one replica whose layers are spread over devices.

        Args:
            stages: Device and layer patterns of each stage, in the order in which samples pass: a
                mapping, or pairs if a device has several stages.
            num_micro_batches: Number of micro-batches that every batch is split into.
            in_flight: Most micro-batches alive at once; None for the number of stages, which
                keeps every device busy.
            schedule: Schedule, as in `Replica`.
            recompute: Patterns of recomputed layers, as in `Plan`.
            owners: Owners as in `Plan`, or a mapping from pattern to device. By default every
                variable lives on the device that computes its layer.
            batch_norm: Statistics of BatchNormalization, as in `Plan`.

        Raises:
            PlanError: PLAN-001, PLAN-004 or PLAN-006 for wrong devices or stages, PLAN-013 or
                PLAN-014 for wrong micro-batches, PLAN-015 to PLAN-018 for wrong patterns of
                layers, PLAN-034 for an unknown schedule.

        >>> plan = Plan.pipeline({"gpu:0": "encoder_*", "gpu:1": ["decoder_*", "head"]},
        ...                      num_micro_batches=8)
        >>> plan.layout, plan.replicas[0].in_flight
        ('pipeline', 2)
        """
        pairs = _pairs(stages)
        names = dict.fromkeys(device for device, _ in pairs)
        most = max(1, min(len(pairs), num_micro_batches))
        replica = Replica(
            share=1,
            num_micro_batches=num_micro_batches,
            in_flight=most if in_flight is None else in_flight,
            schedule=schedule,
            stages=tuple(Stage(device=device, layers=layers) for device, layers in pairs),
        )
        return cls(
            devices=tuple(_device(f"stages[{k}]", name) for k, name in enumerate(names)),
            replicas=(replica,),
            recompute=tuple(recompute),
            owners=owner_rules(owners) if isinstance(owners, Mapping) else owners,
            batch_norm=batch_norm,
        )

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan of a JSON text that `to_json` returned.

        Raises:
            PlanError: PLAN-021 if the text is not JSON, PLAN-022 for an unknown version,
                PLAN-020 and PLAN-023 to PLAN-025 if it is not a plan, the codes of `Plan` if it is
                inconsistent. The error names the path of the value, such as
                ``replicas[1].stages[0].device``.
        """
        return cls(**read_fields(text))

    def to_json(self) -> str:
        """Return the plan as JSON; `from_json` restores it."""
        return write_plan(self)

    def with_shares(self, shares: Sequence[float]) -> Plan:
        """Return the same plan with other shares.

        Args:
            shares: Shares of the replicas, 0 or more, with a sum above 0.

        Returns:
            The plan with these shares; without ``predicted`` if they differ, because it was
            predicted for other shares.

        Raises:
            PlanError: PLAN-007 to PLAN-011 for wrong shares.

        >>> Plan.data_parallel(["cpu:0", "cpu:1"]).with_shares([5, 3]).fractions
        (0.625, 0.375)
        """
        num_replicas = len(self.replicas)
        checked = check_shares(shares, num_expected=num_replicas, expected="replicas")
        replicas = tuple(
            dataclasses.replace(replica, share=share)
            for replica, share in zip(self.replicas, checked, strict=True)
        )
        predicted = self.predicted if checked == self.shares else None
        return dataclasses.replace(self, replicas=replicas, predicted=predicted)

    def check_devices(self, names: Iterable[str]) -> None:
        """Check that all devices of the plan are available.

        Args:
            names: Names of the available devices; more than the plan needs are allowed.

        Raises:
            PlanError: PLAN-029 naming the devices of the plan that are missing.
        """
        missing_devices(self.device_names, tuple(names))

    def __str__(self) -> str:
        """Return the plan as a plain text table."""
        # rich takes longer to import than everything else here, and only a table needs it.
        from evener.plan.table import render_plan

        return render_plan(self)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        from evener.base.terminal import html_of

        return html_of(str(self))


def _device(path: str, device: str | PlanDevice) -> PlanDevice:
    if isinstance(device, PlanDevice):
        return device
    kind = parse_device_name(text_at(path, device), path=path).kind
    return PlanDevice(name=device, kind=kind)


def _pairs(stages: object) -> list[tuple[str, tuple[str, ...]]]:
    """Return the device and the layer patterns of each stage."""
    if isinstance(stages, Mapping):
        stages = tuple(cast("Mapping[Any, Any]", stages).items())
    pairs: list[tuple[str, tuple[str, ...]]] = []
    for index, pair in enumerate(items_at("stages", stages, "a mapping from devices to layers")):
        stage = items_at(f"stages[{index}]", pair, "a device with its layers")
        if len(stage) != 2:
            raise wrong_type(f"stages[{index}]", "a device with its layers", pair)
        device, layers = stage
        if isinstance(layers, str):
            layers = (layers,)
        pairs.append((device, tuple(items_at(f"stages[{index}].layers", layers))))
    return pairs
