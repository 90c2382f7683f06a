"""Write the JSON Schema of plans, ``src/evener/plan/plan.schema.json``.

Run it after a change of a plan's dataclasses: ``.venv/bin/python tools/plan_schema.py``. Keys,
types, defaults and descriptions are those of the dataclasses and their docstrings; what a dataclass
does not say, such as the range of a number, stands in ``_LIMITS``.
`tests/unit/plan/test_json.py` fails if the file is not what this program writes.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from evener.plan import (
    OwnerRule,
    Plan,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    Stage,
)
from evener.plan import plan as published
from evener.plan.plan import REQUIRED_PLAN_KEYS, VERSION

FILE = Path(published.__file__).with_name(published.SCHEMA_FILE)

_MOST_BYTES = 2**63 - 1
_NUMBER = "(?:0|[1-9][0-9]{0,5})"
_DEVICE = rf"(?:worker:{_NUMBER}/)?(?:gpu|cpu):{_NUMBER}"
_TEXT = {"type": "string", "pattern": r"\S"}
_BYTES = {"type": "integer", "minimum": 0, "maximum": _MOST_BYTES}

# By class and field, beside the type: ranges, and descriptions that Python and JSON do not share.
_LIMITS: dict[str, dict[str, Any]] = {
    "Plan.version": {"const": VERSION},
    "Plan.devices": {"minItems": 1, "uniqueItems": True},
    "Plan.replicas": {"minItems": 1},
    "PlanDevice.name": {"$ref": "#/$defs/device_name"},
    "PlanDevice.memory_bytes": {
        "description": "Bytes that the plan may use of its memory; null if unknown.",
        "minimum": 1,
        "maximum": _MOST_BYTES,
    },
    "OwnerRule.device": {"$ref": "#/$defs/owner_name"},
    "Replica.share": {"minimum": 0, "maximum": 1e100},
    "Replica.stages": {"minItems": 1},
    "Replica.num_micro_batches": {"minimum": 1},
    "Replica.in_flight": {"minimum": 1},
    "Stage.device": {"$ref": "#/$defs/device_name"},
    "Stage.layers": {
        "description": "Patterns of layer names in the style of fnmatch; * alone, all layers, is "
        "right for a replica of one stage only.",
        "minItems": 1,
        "uniqueItems": True,
    },
    "Predicted.step_seconds": {"minimum": 0, "maximum": _MOST_BYTES},
    "Predicted.peak_bytes": {
        "description": "By device name, or host: the most bytes in use there.",
        "type": "object",
        "propertyNames": {"$ref": "#/$defs/owner_name"},
        "additionalProperties": _BYTES,
    },
    "Predicted.busy_seconds": {
        "description": "By device name: the seconds of a step in which it computes forward and "
        "backward passes; empty if unknown.",
        "type": "object",
        "propertyNames": {"$ref": "#/$defs/device_name"},
        "additionalProperties": {"type": "number", "minimum": 0, "maximum": _MOST_BYTES},
    },
    "Predicted.batch_size": {
        "description": "Samples of the global batch that this holds for; null if unknown.",
        "minimum": 0,
        "maximum": _MOST_BYTES,
    },
}
_NAMES = {
    "device_name": {
        "description": "gpu:INDEX or cpu:INDEX, with worker:INDEX/ before it for a device of "
        "another machine.",
        "type": "string",
        "pattern": f"^{_DEVICE}$",
    },
    "owner_name": {
        "description": "A device of the plan, or host: the memory of the machine.",
        "type": "string",
        "pattern": f"^(?:host|{_DEVICE})$",
    },
}
# The kind of a device is the one in its name.
_KIND = {
    "if": {"properties": {"kind": {"const": "gpu"}}},
    "then": {"properties": {"name": {"pattern": "gpu:"}}},
    "else": {"properties": {"name": {"pattern": "cpu:"}}},
}
_PARTS = (PlanDevice, OwnerRule, Replica, Stage, Predicted, Rejected)


def main() -> None:
    """Write the file."""
    FILE.write_text(schema_text(), encoding="utf-8")
    print(FILE)


def schema_text() -> str:
    """Return the schema as text."""
    return json.dumps(make_schema(), indent=2, ensure_ascii=False) + "\n"


def make_schema() -> dict[str, Any]:
    """Return the schema."""
    plan = _object_of(Plan, required=REQUIRED_PLAN_KEYS)
    plan["properties"] = {
        "$schema": {**_TEXT, "description": "Address of this schema, for editors; not kept."},
        **plan["properties"],
    }
    parts = {_name(part): _object_of(part) for part in _PARTS}
    parts[_name(PlanDevice)].update(_KIND)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:evener:plan:{VERSION}",
        "title": "Plan",
        **plan,
        "$defs": {**_NAMES, **parts},
    }


def _object_of(part: type[Any], *, required: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Return the schema of a dataclass as an object of no other keys than its fields."""
    hints = typing.get_type_hints(part)
    doc = inspect.getdoc(part) or ""
    descriptions = _descriptions(doc)
    properties: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        limits = _LIMITS.get(f"{part.__name__}.{field.name}", {})
        found = {"description": descriptions[field.name]}
        # A name or a mapping is described by its limits alone.
        found |= limits if "$ref" in limits or "type" in limits else _of_type(hints[field.name])
        found |= limits
        # The version says which form it is: it is never left out.
        if field.default is not dataclasses.MISSING and field.name != "version":
            found["default"] = _as_json(field.default)
        properties[field.name] = found
    without_default = tuple(
        field.name for field in dataclasses.fields(part) if field.default is dataclasses.MISSING
    )
    return {
        "description": _plain(doc.partition("\n\n")[0]),
        "type": "object",
        "properties": properties,
        "required": sorted(without_default if required is None else required),
        "additionalProperties": False,
    }


def _of_type(hint: Any) -> dict[str, Any]:
    """Return the schema of a type that a field of a dataclass has."""
    simple = {str: _TEXT, int: {"type": "integer"}, float: {"type": "number"}}
    if hint in simple:
        return dict(simple[hint])
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return {"$ref": f"#/$defs/{_name(hint)}"}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        assert arguments[1] is Ellipsis, hint
        return {"type": "array", "items": _of_type(arguments[0])}
    if origin in (types.UnionType, typing.Union):
        return _either(
            [_of_type(argument) for argument in arguments if argument is not types.NoneType], hint
        )
    raise TypeError(f"no schema for {hint}")


def _either(found: list[dict[str, Any]], hint: Any) -> dict[str, Any]:
    may_be_null = types.NoneType in get_args(hint)
    if len(found) == 1 and may_be_null and "type" in found[0]:
        return {**found[0], "type": [found[0]["type"], "null"]}
    for option in found:
        # A list that may also be a word or null is never empty: those mean the empty list.
        if option.get("type") == "array":
            option["minItems"] = 1
    return {"anyOf": [*found, {"type": "null"}] if may_be_null else found}


def _descriptions(doc: str) -> Mapping[str, str]:
    """Return what the section Args of a docstring says of each argument."""
    section = re.search(r"^Args:\n((?: .*\n?|\n)+)", doc, re.MULTILINE)
    assert section is not None, doc
    entries = re.split(r"^ {4}(\w+): ", section[1], flags=re.MULTILINE)[1:]
    return {name: _plain(text) for name, text in zip(entries[::2], entries[1::2], strict=True)}


def _plain(text: str) -> str:
    text = text.replace("``", "").replace("`", "").replace("None if", "null if")
    return " ".join(text.split())


def _name(part: type[Any]) -> str:
    """Return the name of a definition: ``OwnerRule`` is ``owner_rule``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", part.__name__).lower()


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


if __name__ == "__main__":
    main()
