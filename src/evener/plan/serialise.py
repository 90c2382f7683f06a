"""JSON form of plans, version 1.

Only objects, lists and keys are checked here. The Plan that is made from them checks the values,
and its errors name the same paths.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from evener.errors import PlanError, did_you_mean
from evener.plan.fields import PlanFields
from evener.plan.parts import OwnerRule, PlanDevice, Predicted, Rejected, Replica, Stage
from evener.plan.typed_values import list_at, object_at, text_at, whole_number_at
from evener.plan.validate import check_version

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

    Raises:
        PlanError: PLAN-021 if it is not JSON, PLAN-022 for an unknown version, PLAN-023 for
            an unknown key, PLAN-024 for a missing one, PLAN-025 for a duplicate
            one, PLAN-020 for a value of the wrong type.
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
