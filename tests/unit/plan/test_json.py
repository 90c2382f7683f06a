"""Plans to and from JSON; the published schema says what `Plan.from_json` reads, and no more."""

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
from hypothesis import given, settings
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
from unit.plan.strategies import plans

ROOT = Path(__file__).parents[3]
SCHEMA = plan_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

GOLDEN = """\
{
  "version": 1,
  "devices": [
    {"name": "gpu:0", "kind": "gpu", "memory_bytes": 25769803776},
    {"name": "gpu:1", "kind": "gpu", "memory_bytes": 12884901888},
    {"name": "gpu:2", "kind": "gpu", "memory_bytes": null}
  ],
  "owners": [
    {"pattern": "embedding/*", "device": "host"},
    {"pattern": "*", "device": "gpu:0"}
  ],
  "replicas": [
    {
      "share": 320,
      "num_micro_batches": 8,
      "in_flight": 2,
      "schedule": "1f1b",
      "stages": [
        {"device": "gpu:0", "layers": ["embedding", "block_[0-5]"]},
        {"device": "gpu:1", "layers": ["block_[6-9]", "head"]}
      ]
    },
    {
      "share": 64,
      "num_micro_batches": 1,
      "in_flight": 1,
      "schedule": "1f1b",
      "stages": [{"device": "gpu:2", "layers": ["*"]}]
    }
  ],
  "recompute": ["block_*", "head"],
  "batch_norm": "synchronized",
  "predicted": {
    "step_seconds": 0.123,
    "peak_bytes": {"gpu:0": 21474836480, "host": 2147483648},
    "busy_seconds": {"gpu:0": 0.1, "gpu:1": 0.0625},
    "batch_size": 384
  },
  "rejected": [
    {
      "layout": "data parallel",
      "reason": "even split: gpu:1 needs 17.2 GiB and has 11.9 GiB, which is 5.3 GiB too little \
even with 8 micro-batches and recomputation"
    }
  ]
}"""

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
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["sharded", "host", "gpu:0", "cpu:01", " ", "GPipe", "gpipe", "per_device"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=4,
)
Place = tuple[Any, ...]


def places_in(value: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield (path of an object or list, key in it) for every place below a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inner:
        yield path, key
        if isinstance(item, dict | list):
            yield from places_in(item, (*path, key))


def keys_in(fields: dict[str, Any]) -> Iterator[tuple[Place, str]]:
    """Yield the same for the objects whose keys are fixed."""
    for path, key in places_in(fields):
        if isinstance(at(fields, path), dict) and not {"peak_bytes", "busy_seconds"} & {*path}:
            yield path, key


def at(value: Any, path: Place) -> Any:
    for key in path:
        value = value[key]
    return value


def code_of(fields: Any) -> str | None:
    try:
        Plan.from_json(json.dumps(fields))
    except PlanError as error:
        return error.code
    return None


def is_told_apart(value: Any) -> bool:
    """Whether JSON Schema has the value as it is: to it, 1.0 is an integer, and NaN no number."""
    if isinstance(value, dict | list):
        return all(map(is_told_apart, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or not (value.is_integer() or value - value != 0)


def test_golden_text() -> None:
    assert examples.HYBRID.to_json() == json.dumps(json.loads(GOLDEN), indent=2)
    assert Plan.from_json(GOLDEN) == examples.HYBRID


@settings(max_examples=150)
@given(plans())
def test_every_plan_comes_back_and_validates(plan: Plan) -> None:
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    assert Plan.from_json(text).to_json() == text
    VALIDATOR.validate(json.loads(text))


@settings(max_examples=100)
@given(plans(), st.data())
def test_no_key_is_ignored(plan: Plan, data: st.DataObject) -> None:
    """A key with a letter more, anywhere in the text, is an error that names it."""
    fields = json.loads(plan.to_json())
    holder, key = data.draw(st.sampled_from(list(keys_in(fields))))
    at(fields, holder)[f"{key}x"] = 1
    assert not VALIDATOR.is_valid(fields)
    with pytest.raises(PlanError, match=f"'{key}x'") as caught:
        Plan.from_json(json.dumps(fields))
    assert caught.value.code == "PLAN-023"


@settings(max_examples=150)
@given(plans(), st.data())
def test_any_value_anywhere_is_a_plan_or_a_plan_error(plan: Plan, data: st.DataObject) -> None:
    """The schema takes what `Plan.from_json` takes."""
    fields = json.loads(plan.to_json())
    holder, key = data.draw(st.sampled_from(list(places_in(fields))))
    value = at(fields, holder)[key] = data.draw(VALUES)
    code = code_of(fields)
    if code is None:
        read = Plan.from_json(json.dumps(fields))
        assert Plan.from_json(read.to_json()) == read
        assert str(read)
    if code not in OF_SEVERAL_PLACES and is_told_apart(value):
        assert VALIDATOR.is_valid(fields) == (code is None), (holder, key, value, code)


def test_what_has_a_default_may_be_left_out() -> None:
    whole = json.loads(examples.HYBRID.to_json())
    for holder, key in list(keys_in(whole)):
        fields = json.loads(json.dumps(whole))
        at(fields, holder).pop(key)
        code = code_of(fields)
        if code not in OF_SEVERAL_PLACES:
            assert VALIDATOR.is_valid(fields) == (code is None), (holder, key)
    text = """{
      "version": 1,
      "owners": "central",
      "devices": [{"name": "cpu:0", "kind": "cpu"}],
      "replicas": [{"share": 1, "stages": [{"device": "cpu:0"}]}]
    }"""
    assert Plan.from_json(text) == Plan.data_parallel(["cpu:0"], owners="central")
    # As plans were written before.
    del whole["predicted"]["busy_seconds"], whole["predicted"]["batch_size"]
    read = Plan.from_json(json.dumps(whole)).predicted
    assert read == Predicted(step_seconds=0.123, peak_bytes=examples.HYBRID.predicted.peak_bytes)


@pytest.mark.parametrize(
    ("share", "text"),
    [(320.0, "320"), (0.625, "0.625"), (1e22, "1e+22"), (2.0**53 - 1, "9007199254740991")],
)
def test_whole_shares_are_written_as_such(share: float, text: str) -> None:
    written = Plan.data_parallel(["cpu:0", "cpu:1"], shares=[share, 0.0]).to_json()
    assert f'"share": {text},' in written
    assert '"share": 0,' in written


def test_a_plan_may_name_its_schema() -> None:
    text = examples.HYBRID.to_json()
    fields = {"$schema": "./plan.schema.json", **json.loads(text)}
    VALIDATOR.validate(fields)
    read = Plan.from_json(json.dumps(fields))
    assert read == examples.HYBRID
    assert read.to_json() == text
    for value, code in ((1, "PLAN-020"), (" ", "PLAN-018")):
        wrong = {**fields, "$schema": value}
        assert code_of(wrong) == code
        assert not VALIDATOR.is_valid(wrong)
    fields["replicas"][0]["$schema"] = "./plan.schema.json"
    assert code_of(fields) == "PLAN-023"
    assert not VALIDATOR.is_valid(fields)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plan_schema", ROOT / "tools/plan_schema.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_is_the_schema_that_the_dataclasses_say(generator: ModuleType) -> None:
    wanted = generator.schema_text()
    assert plan_schema_text() == wanted, "run .venv/bin/python tools/plan_schema.py"
    VALIDATOR.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


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


def test_plans_and_their_schema_need_no_heavy_packages(run_python) -> None:
    code = """
        import sys
        from evener.plan import Plan, plan_schema
        plan_schema()
        str(Plan.data_parallel(["cpu:0"]))
        print(*sorted({"tensorflow", "keras", "numpy", "jsonschema"} & set(sys.modules)))
    """
    assert run_python(code).stdout.strip() == ""
