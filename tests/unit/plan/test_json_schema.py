"""The published schema of plans says what `Plan.from_json` reads, and nothing else."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evener.errors import PlanError
from evener.plan import (
    OwnerRule,
    Plan,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    Stage,
    plan_schema,
    plan_schema_text,
)
from unit.plan import examples
from unit.plan.error_cases import json_cases
from unit.plan.strategies import plans

ROOT = Path(__file__).parents[3]
SCHEMA = plan_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

# Of two places of a plan that contradict each other, each may be right alone.
OF_SEVERAL_PLACES = {
    "PLAN-002": "a device twice",
    "PLAN-003": "a device that the plan does not have",
    "PLAN-009": "shares that add up to 0",
    "PLAN-014": "more in flight than there are micro-batches",
    "PLAN-016": "all layers, in one of several stages",
    "PLAN-017": "a pattern in two stages",
}

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["sharded", "host", "gpu:0", "cpu:01", " ", "GPipe", "gpipe", "per_device"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plan_schema", ROOT / "tools/plan_schema.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_the_file_is_what_the_dataclasses_say(generator: ModuleType) -> None:
    wanted = generator.schema_text()
    assert plan_schema_text() == wanted, "run .venv/bin/python tools/plan_schema.py"


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (PlanDevice, "plan_device"),
        (OwnerRule, "owner_rule"),
        (Replica, "replica"),
        (Stage, "stage"),
        (Predicted, "predicted"),
        (Rejected, "rejected"),
        (Plan, None),
    ],
)
def test_each_field_is_a_key_with_a_description(part: Any, name: str | None) -> None:
    found = SCHEMA if name is None else SCHEMA["$defs"][name]
    keys = set(found["properties"]) - {"$schema"}
    assert keys == {field.name for field in dataclasses.fields(part)}
    assert all(field["description"] for field in found["properties"].values())
    assert found["additionalProperties"] is False


def test_units_are_said() -> None:
    parts = SCHEMA["$defs"]
    assert "Bytes" in parts["plan_device"]["properties"]["memory_bytes"]["description"]
    assert "seconds" in parts["predicted"]["properties"]["step_seconds"]["description"]
    assert "bytes" in parts["predicted"]["properties"]["peak_bytes"]["description"]
    assert "Samples" in parts["replica"]["properties"]["share"]["description"]
    # What is Python's alone is not in JSON.
    assert "None" not in plan_schema_text()


@settings(max_examples=150)
@given(plans())
def test_every_plan_validates(plan: Plan) -> None:
    VALIDATOR.validate(json.loads(plan.to_json()))


@pytest.mark.parametrize(
    "name", [name for name, value in vars(examples).items() if isinstance(value, Plan)]
)
def test_every_example_validates(name: str) -> None:
    VALIDATOR.validate(json.loads(getattr(examples, name).to_json()))


def test_what_has_a_default_may_be_left_out() -> None:
    whole = json.loads(examples.HYBRID.to_json())
    for holder, key in list(_keys(whole)):
        fields = json.loads(json.dumps(whole))
        _at(fields, holder).pop(key)
        code = _code(fields)
        if code not in OF_SEVERAL_PLACES:
            assert VALIDATOR.is_valid(fields) == (code is None), (holder, key)


@settings(max_examples=100)
@given(plans(), st.data())
def test_an_unknown_key_is_refused(plan: Plan, data: st.DataObject) -> None:
    fields = json.loads(plan.to_json())
    holder, key = data.draw(st.sampled_from(list(_keys(fields))))
    _at(fields, holder)[f"{key}x"] = 1
    assert not VALIDATOR.is_valid(fields)


@pytest.mark.long
@settings(max_examples=400)
@given(plans(), st.data())
def test_the_schema_refuses_what_is_refused_for_its_shape(plan: Plan, data: st.DataObject) -> None:
    """Any value at any place: both take it, or both refuse it."""
    fields = json.loads(plan.to_json())
    holder, key = data.draw(st.sampled_from(list(_places(fields))))
    value = data.draw(VALUES)
    # To JSON Schema, 1.0 is an integer.
    assume(not _has_whole_float(value))
    _at(fields, holder)[key] = value
    code = _code(fields)
    if code in OF_SEVERAL_PLACES:
        return
    assert VALIDATOR.is_valid(fields) == (code is None), (holder, key, value, code)


@pytest.mark.parametrize(
    "case",
    # Those that are made of JSON in which one place was changed.
    [case for case in json_cases.CASES if case.make.__qualname__.startswith("written.")],
    ids=lambda case: f"{case.code}-{case.what}",
)
def test_mistakes_in_json_are_refused(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    own = Plan.from_json
    monkeypatch.setattr(Plan, "from_json", lambda text: (texts.append(text), own(text)))
    with pytest.raises(PlanError):
        case.make()
    assert not VALIDATOR.is_valid(json.loads(texts[0]))


def test_editors_may_be_told_of_the_schema() -> None:
    text = examples.HYBRID.to_json()
    fields = {"$schema": "./plan.schema.json", **json.loads(text)}
    VALIDATOR.validate(fields)
    read = Plan.from_json(json.dumps(fields))
    assert read == examples.HYBRID
    assert read.to_json() == text


@pytest.mark.parametrize(("value", "code"), [(1, "PLAN-020"), (" ", "PLAN-018")])
def test_the_place_of_the_schema_is_text(value: object, code: str) -> None:
    fields = {"$schema": value, **json.loads(examples.HYBRID.to_json())}
    assert _code(fields) == code
    assert not VALIDATOR.is_valid(fields)


def test_only_the_plan_itself_names_a_schema() -> None:
    fields = json.loads(examples.HYBRID.to_json())
    fields["replicas"][0]["$schema"] = "./plan.schema.json"
    assert _code(fields) == "PLAN-023"
    assert not VALIDATOR.is_valid(fields)


def test_the_schema_is_read_without_other_packages(run_python) -> None:
    code = """
        import sys
        from evener.plan import plan_schema
        plan_schema()
        print(*sorted({"tensorflow", "keras", "numpy", "jsonschema"} & set(sys.modules)))
    """
    assert run_python(code).stdout.strip() == ""


Place = tuple[Any, ...]


def _places(value: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield (path of an object or list, key in it) for every place below a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inner:
        yield path, key
        if isinstance(item, dict | list):
            yield from _places(item, (*path, key))


def _keys(fields: dict[str, Any]) -> Iterator[tuple[Place, str]]:
    """Yield the same for the objects whose keys are fixed."""
    for path, key in _places(fields):
        if isinstance(_at(fields, path), dict) and not {"peak_bytes", "busy_seconds"} & {*path}:
            yield path, key


def _at(value: Any, path: Place) -> Any:
    for key in path:
        value = value[key]
    return value


def _code(fields: Any) -> str | None:
    try:
        Plan.from_json(json.dumps(fields))
    except PlanError as error:
        return error.code
    return None


def _has_whole_float(value: Any) -> bool:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return any(map(_has_whole_float, inner))
    return isinstance(value, float) and value.is_integer()
