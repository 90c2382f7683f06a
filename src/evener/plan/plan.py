"""The Plan: a frozen value that people or the planner write, and that the engine reads.

It is made in Python or read from JSON. The reader of records checks types, and this file the rules
between values. Every error names the place of the mistake, which is the same in Python and JSON:
``replicas[1].stages[0].device``.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, cast, get_args, get_type_hints

from evener.base.notebook import ShownAsText
from evener.base.records import RecordError, from_plain, shorten, to_plain
from evener.errors import PlanError, did_you_mean
from evener.plan.parts import (
    HOST,
    HOST_DEVICE,
    BatchNormName,
    Owners,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    ScheduleName,
    Stage,
    owner_of,
    owner_rules,
    parse_device_name,
    to_double,
    to_tuple,
    to_whole,
)

VERSION = 1
"""Version of the JSON form of plans."""

REQUIRED_PLAN_KEYS = ("version", "devices", "replicas", "owners")
"""Keys that the JSON of a plan must have."""

SCHEMA_FILE = "plan.schema.json"
"""Name of the file with the JSON Schema, in this folder."""

Layout = Literal["one device", "data parallel", "central storage", "pipeline", "hybrid"]

_MOST_BYTES = 2**63 - 1
# Up to these limits num_samples * share is finite, and the sizes add up exactly in doubles.
_LARGEST_SHARE = 1e100
_MOST_SAMPLES = 2**50


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ShownAsText):
    """Plan of a distributed training step: owners of the variables, and devices that compute.

    A plan is checked for consistency when it is made; `check_devices` compares it with the
    devices of the machine. Plans are compared by value and hashable.

    Args:
        version: Version of the JSON form of plans, 1.
        devices: Devices that the plan is for, at least one.
        owners: Owners of the variables: ``"sharded"`` (spread over the devices), ``"central"`` (on
            the host), or rules of which the first that matches wins.
        replicas: Replicas of the model, at least one; their shares add up to more than 0.
        recompute: Patterns of layers whose activations are recomputed in the backward pass instead
            of being saved.
        batch_norm: Samples of the statistics of BatchNormalization. ``"synchronized"``: the global
            batch, as on one device; ``"per_device"``: the samples that a device computes at once,
            which is cheaper, but the only choice whose results differ from those of one device.
        predicted: Prediction, if a planner made the plan.
        rejected: Rejected alternatives, with reasons.

    Raises:
        PlanError: PLAN-001 to PLAN-035 if the plan is inconsistent.
            ``evener doctor --explain CODE`` explains each.

    >>> plan = Plan.data_parallel(["gpu:0", "gpu:1"], shares=[320, 192])
    >>> plan.layout, plan.shares
    ('data parallel', (320.0, 192.0))
    """

    version: int = VERSION
    devices: tuple[PlanDevice, ...]
    owners: Owners = "sharded"
    replicas: tuple[Replica, ...]
    recompute: tuple[str, ...] = ()
    batch_norm: BatchNormName = "synchronized"
    predicted: Predicted | None = None
    rejected: tuple[Rejected, ...] = ()

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Plan).items():
            value = to_tuple(to_whole(getattr(self, name)))
            object.__setattr__(self, name, value)
            try:
                from_plain(to_plain(value), kind, place=name)
            except RecordError as problem:
                raise _plan_error(problem) from None
            except TypeError:
                raise _wrong_type(name, "made of the parts of a plan", value) from None
        _check(self)

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
        listed = _items("devices", devices)
        named = tuple(_device(f"devices[{i}]", device) for i, device in enumerate(listed))
        # Without devices the checks of the plan raise the error.
        checked = tuple(1.0 for _ in named)
        if named and shares is not None:
            checked = check_shares(shares, num_expected=len(named))
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
        if isinstance(stages, Mapping):
            stages = tuple(stages.items())
        made: list[Stage] = []
        for k, pair in enumerate(_items("stages", stages, "a mapping from devices to layers")):
            stage = _items(f"stages[{k}]", pair, "a device with its layers")
            if len(stage) != 2:
                raise _wrong_type(f"stages[{k}]", "a device with its layers", pair)
            device, layers = stage
            layers = (layers,) if isinstance(layers, str) else layers
            made.append(Stage(device=device, layers=tuple(_items(f"stages[{k}].layers", layers))))
        names = dict.fromkeys(stage.device for stage in made)
        if in_flight is None:
            in_flight = max(1, min(len(made), num_micro_batches))
        return cls(
            devices=tuple(_device(f"stages[{k}]", name) for k, name in enumerate(names)),
            replicas=(
                Replica(
                    share=1,
                    num_micro_batches=num_micro_batches,
                    in_flight=in_flight,
                    schedule=schedule,
                    stages=tuple(made),
                ),
            ),
            recompute=tuple(recompute),
            owners=owner_rules(owners) if isinstance(owners, Mapping) else owners,
            batch_norm=batch_norm,
        )

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan of a JSON text that `to_json` returned.

        The key ``$schema``, by which editors find the schema of plans, is ignored.

        Raises:
            PlanError: PLAN-021 if the text is not JSON, PLAN-022 for an unknown version,
                PLAN-020 and PLAN-023 to PLAN-025 if it is not a plan, the codes of `Plan` if it is
                inconsistent. The error names the path of the value, such as
                ``replicas[1].stages[0].device``.
        """
        fields = _parse(text)
        try:
            if isinstance(fields, dict):
                fields = cast("dict[str, object]", fields)
                # A newer version may have keys that are unknown here.
                if "version" in fields:
                    _check_version(from_plain(fields["version"], int, place="version"))
                if "$schema" in fields:
                    _check_text("$schema", from_plain(fields.pop("$schema"), str, place="$schema"))
                has_unknown = not fields.keys() <= get_type_hints(cls).keys()
                missing = [key for key in REQUIRED_PLAN_KEYS if key not in fields]
                if missing and not has_unknown:
                    raise RecordError("missing", key=missing[0], known=REQUIRED_PLAN_KEYS)
            return from_plain(fields, cls)
        except RecordError as problem:
            raise _plan_error(problem) from None

    def to_json(self) -> str:
        """Return the plan as JSON; `from_json` restores it."""
        return json.dumps(
            _shortest_numbers(to_plain(self)), indent=2, ensure_ascii=False, allow_nan=False
        )

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
        checked = check_shares(shares, num_expected=len(self.replicas), expected="replicas")
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
        needed, present = self.device_names, tuple(names)
        missing = [name for name in needed if name not in present]
        if not missing:
            return
        here = f"make a plan for the devices here: Plan.data_parallel({list(present or ['cpu:0'])})"
        fix = f"run it on a machine with these devices, or {here}."
        if any(name.startswith("worker:") for name in missing):
            fix = (
                "start its workers, which together have these devices: evener launch --plan "
                "plan.json, with --workers N on one machine, or under a scheduler on several; "
                f"or {here}."
            )
        raise PlanError(
            "PLAN-029",
            f"The plan needs devices that are not here: {', '.join(missing)}.",
            why=f"it was made for {', '.join(needed)}; this machine has "
            f"{', '.join(present) or 'no device'}.",
            fix=fix,
        )

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
        """Return the device that owns a variable, or None if the plan leaves it open.

        Args:
            path: Path of the variable, such as ``"dense/kernel"``.

        Returns:
            With rules, the device of the first that matches (``"host"`` as ``"cpu:0"``) or None;
            with ``"central"`` always ``"cpu:0"``; with ``"sharded"`` always None, because the
            engine spreads by bytes, which a path does not tell.
        """
        if self.owners == "central":
            return HOST_DEVICE
        return None if self.owners == "sharded" else owner_of(path, self.owners)

    def __str__(self) -> str:
        # By name, since it reads plans. rich takes longer to import than everything else here.
        table = importlib.import_module("evener.plan.table")
        return cast("str", table.render_plan(self))


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
    # tools/plan_schema.py makes the file from the dataclasses of a plan.
    return resources.files("evener.plan").joinpath(SCHEMA_FILE).read_text(encoding="utf-8")


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
    count = to_whole(num_samples)
    if not isinstance(count, int) or isinstance(count, bool):
        raise _wrong_type("num_samples", "a whole number", count)
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
    checked = tuple(map(to_double, _items("shares", shares)))
    if num_expected is not None and len(checked) != num_expected:
        num_more = len(checked) - num_expected
        right = [*checked[:num_expected], *[0] * -num_more]
        raise PlanError(
            "PLAN-010" if num_more > 0 else "PLAN-011",
            f"There are {'more' if num_more > 0 else 'fewer'} shares than {expected}: "
            f"{len(checked)} and {num_expected}.",
            why=f"each of the {expected} needs exactly one share, in order.",
            fix=f"give as many shares as {expected}, for example {right}"
            + ("." if num_more > 0 else "; a share of 0 means no samples."),
        )
    for index, share in enumerate(checked):
        place = path.format(index)
        if not isinstance(share, float):
            raise _wrong_type(place, "a number", share)
        if share < 0 and not math.isinf(share):
            raise PlanError(
                "PLAN-007",
                f"{place} is {share:g}, which is negative.",
                why="a share is a relative part of each batch, so it must be 0 or more.",
                fix=f"write {place} = {-share:g}, or 0 to leave the device idle.",
            )
        if not abs(share) <= _LARGEST_SHARE:
            raise PlanError(
                "PLAN-008",
                f"{place} is {share:g}, which is not a usable number.",
                why=f"a share must be a finite number from 0 to {_LARGEST_SHARE:g}; if it is "
                "computed from a measured speed, the time may have been 0.",
                fix=f"write a number relative to the other shares, for example {place} = 1.",
            )
    if not sum(checked) > 0:
        raise PlanError(
            "PLAN-009",
            f"The shares add up to 0: {list(checked)}.",
            why="at least one share must be greater than 0.",
            fix=f"write for example {[1.0] * max(1, len(checked))}.",
        )
    return checked


def _items(path: str, value: object, expected: str = "a list") -> list[Any]:
    # The letters of a text would be read as items.
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise _wrong_type(path, expected, value)
    return list(cast("Iterable[Any]", value))


def _device(path: str, device: object) -> PlanDevice:
    if isinstance(device, PlanDevice):
        return device
    if not isinstance(device, str):
        raise _wrong_type(path, "text", device)
    return PlanDevice(name=device, kind=parse_device_name(device, path=path).kind)


def _parse(text: object) -> object:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields: dict[str, object] = {}
        for key, value in pairs:
            if key in fields:
                raise PlanError(
                    "PLAN-025",
                    f"The key {key!r} is there twice in one object.",
                    why=f"its values are {fields[key]!r} and {value!r}; a key can have only one "
                    "value.",
                    fix=f"keep one {key!r}.",
                )
            fields[key] = value
        return fields

    try:
        if not isinstance(text, str):
            raise TypeError(f"the value is of type {type(text).__name__}, not text")
        return json.loads(text, object_pairs_hook=unique)
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


def _shortest_numbers(value: Any) -> Any:
    """Return plain values with 320 instead of 320.0, if a double is that integer exactly."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: _shortest_numbers(inner) for key, inner in items}
    if isinstance(value, list | tuple):
        return [_shortest_numbers(inner) for inner in cast("list[Any]", value)]
    if isinstance(value, float) and value.is_integer() and 0 <= value < 2**53:
        return int(value)
    return value


def _plan_error(problem: RecordError) -> PlanError:
    place, key, known = problem.place, problem.key, problem.known
    where = place or "the plan"
    if problem.kind == "unknown":
        return PlanError(
            "PLAN-023",
            f"{where} has the unknown key {key!r}.{did_you_mean(key, known)}",
            why=f"the keys here are {', '.join(known)}.",
            fix=f"rename {key!r} or remove it.",
        )
    if problem.kind == "missing":
        return PlanError(
            "PLAN-024",
            f"{where} is missing the key {key!r}.",
            why=f"the required keys are {', '.join(known)}.",
            fix=f"add {f'{place}.{key}' if place else key}.",
        )
    word, name = problem.value, place.rpartition(".")[2]
    if problem.kind == "type" or not isinstance(word, str):
        return _wrong_type(where, problem.expected or f"usable ({problem.reason})", word)
    if name == "owners":
        words = ("sharded", "central")
        return PlanError(
            "PLAN-019",
            f"owners is {word!r}.{did_you_mean(word.lower(), words)}",
            why="as a string, owners is 'sharded' (spread over the devices) or 'central' "
            "(on the host).",
            fix="write owners='sharded', or rules: (OwnerRule(pattern='*', device='gpu:0'),).",
        )
    if name == "schedule":
        words = get_args(ScheduleName)
        return PlanError(
            "PLAN-034",
            f"{place} is {word!r}, which is not a schedule.{did_you_mean(word.lower(), words)}",
            why=f"the schedules are {', '.join(words)}.",
            fix=f"write {place} = {words[0]!r}, or leave it out.",
        )
    if name == "batch_norm":
        words = get_args(BatchNormName)
        return PlanError(
            "PLAN-035",
            f"batch_norm is {word!r}, which is not known.{did_you_mean(word.lower(), words)}",
            why=f"BatchNormalization is {' or '.join(map(repr, words))}: its statistics "
            "are those of the whole batch, or of the samples of each device.",
            fix=f"write batch_norm = {words[0]!r}, or leave it out.",
        )
    return _wrong_type(where, "'gpu' or 'cpu'", word)


_EXAMPLES = {
    "text": "'gpu:0'",
    "a whole number": "4",
    "a number": "0.5",
    "a list": "[...]",
    "an object": "{...}",
    "a mapping from devices to layers": "{'gpu:0': 'encoder_*', 'gpu:1': ['decoder_*', 'head']}",
    "a device with its layers": "('gpu:0', 'encoder_*')",
}


def _wrong_type(path: str, expected: str, value: object) -> PlanError:
    example = _EXAMPLES.get(expected)
    return PlanError(
        "PLAN-020",
        f"{path} must be {expected}, not {shorten(value)}.",
        why=f"the value there is of type {type(value).__name__}.",
        fix=f"write {expected}" + (f", for example {path} = {example}." if example else "."),
    )


def _check(plan: Plan) -> None:
    _check_version(plan.version)
    names = _check_devices(plan.devices)
    _check_replicas(plan.replicas, names)
    if not plan.owners:
        raise PlanError(
            "PLAN-031",
            "owners has no rules.",
            why="the list is empty, so no variable would have an owner.",
            fix="write owners='sharded', or at least one rule.",
        )
    for index, rule in enumerate(() if isinstance(plan.owners, str) else plan.owners):
        _check_text(f"owners[{index}].pattern", rule.pattern)
        if rule.device != HOST:
            _check_among(f"owners[{index}].device", rule.device, names)
    for index, pattern in enumerate(plan.recompute):
        _check_text(f"recompute[{index}]", pattern)
    values: dict[str, float] = {}
    if plan.predicted is not None:
        values["step_seconds"] = plan.predicted.step_seconds
        for field in ("peak_bytes", "busy_seconds"):
            for name, value in getattr(plan.predicted, field).items():
                if name != HOST or field == "busy_seconds":
                    _check_among(f"a key of predicted.{field}", name, names)
                values[f"{field}[{name!r}]"] = value
        values["batch_size"] = plan.predicted.batch_size or 0
    for field, value in values.items():
        # NaN fails this too.
        if not 0 <= value <= _MOST_BYTES:
            raise PlanError(
                "PLAN-028",
                f"predicted.{field} is {value}.",
                why="predicted seconds, bytes and samples must be finite numbers, 0 or more.",
                fix="set predicted to None (in JSON: null) if it is not known.",
            )
    for index, rejected in enumerate(plan.rejected):
        _check_text(f"rejected[{index}].layout", rejected.layout)
        _check_text(f"rejected[{index}].reason", rejected.reason)


def _check_version(version: int) -> None:
    if version != VERSION:
        is_newer = version > VERSION
        raise PlanError(
            "PLAN-022",
            f"The plan has version {version}; this version of evener reads version {VERSION}.",
            why="it was written by another version of evener."
            if is_newer
            else "there is no such version.",
            fix="install a newer version of evener." if is_newer else f"write version = {VERSION}.",
        )


def _check_text(path: str, text: str) -> None:
    if not text.strip():
        raise PlanError(
            "PLAN-018",
            f"{path} is empty.",
            why=f"it is {text!r}; a name or pattern cannot be blank.",
            fix="write a text, or remove the entry.",
        )


def _check_among(path: str, name: str, names: Sequence[str]) -> None:
    _check_text(path, name)
    if name not in names:
        raise PlanError(
            "PLAN-003",
            f"{path} is {name!r}, which is not a device of the plan."
            f"{did_you_mean(name.lower(), names)}",
            why=f"the devices of the plan are {', '.join(names)}.",
            fix=f"write one of these, for example {names[0]!r}, or add {name!r} to devices.",
        )


def _check_devices(devices: Sequence[PlanDevice]) -> tuple[str, ...]:
    if not devices:
        raise PlanError(
            "PLAN-004",
            "The plan has no devices.",
            why="devices is empty; a plan needs at least one device.",
            fix="name at least one, for example Plan.data_parallel(['cpu:0']).",
        )
    seen: dict[str, int] = {}
    for index, device in enumerate(devices):
        path, name = f"devices[{index}]", device.name
        _check_text(f"{path}.name", name)
        kind = parse_device_name(name, path=f"{path}.name").kind
        if device.kind != kind:
            raise PlanError(
                "PLAN-026",
                f"{path}.kind is {device.kind!r}, but {name} is a {kind}.",
                why="the kind of a device is 'gpu' or 'cpu', the one in its name.",
                fix=f"write {path}.kind = {kind!r}, or PlanDevice.named({name!r}).",
            )
        if device.memory_bytes is not None and not 1 <= device.memory_bytes <= _MOST_BYTES:
            raise PlanError(
                "PLAN-027",
                f"{path}.memory_bytes is {device.memory_bytes}.",
                why=f"the memory of {name} must be from 1 to {_MOST_BYTES} bytes.",
                fix="write the bytes the plan may use, or None (in JSON: null) if unknown.",
            )
        if name in seen:
            raise PlanError(
                "PLAN-002",
                f"{path}.name names {name} a second time.",
                why=f"devices[{seen[name]}] is {name} already.",
                fix="list each device once; parts of one GPU are separate devices: the spec "
                "'gpu:0@10GiB,gpu:0@5GiB' makes gpu:0 and gpu:1.",
            )
        seen[name] = index
    return tuple(seen)


def _check_replicas(replicas: Sequence[Replica], names: Sequence[str]) -> None:
    if not replicas:
        raise PlanError(
            "PLAN-005",
            "The plan has no replicas.",
            why="replicas is empty, so no samples would be computed.",
            fix=f"add at least one, for example Plan.data_parallel({list(names)}).",
        )
    for index, replica in enumerate(replicas):
        path = f"replicas[{index}]"
        count, in_flight = replica.num_micro_batches, replica.in_flight
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
        if not replica.stages:
            raise PlanError(
                "PLAN-006",
                f"{path} has no stages.",
                why="a replica without a stage has no device that computes its samples.",
                fix=f"give it one, for example stages=(Stage(device={names[0]!r}),).",
            )
        for number, stage in enumerate(replica.stages):
            _check_among(f"{path}.stages[{number}].device", stage.device, names)
        seen: dict[str, str] = {}
        for number, stage in enumerate(replica.stages):
            if not stage.layers:
                raise PlanError(
                    "PLAN-015",
                    f"{path}.stages[{number}].layers is empty.",
                    why="a stage without layers computes nothing.",
                    fix=f"list its layers, or remove stages[{number}] from {path}.",
                )
            for position, pattern in enumerate(stage.layers):
                here = f"{path}.stages[{number}].layers[{position}]"
                _check_text(here, pattern)
                count = len(replica.stages)
                if count > 1 and pattern.strip("*") == "":
                    raise PlanError(
                        "PLAN-016",
                        f"{here} is {pattern!r}, all layers, in a replica of {count} stages.",
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
                seen[pattern] = here
    check_shares([replica.share for replica in replicas], path="replicas[{}].share")
