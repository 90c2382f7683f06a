"""Plans to and from JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evener.errors import PlanError
from evener.plan import Plan
from unit.plan import examples
from unit.plan.strategies import plans

GOLDEN = """\
{
  "version": 1,
  "devices": [
    {
      "name": "gpu:0",
      "kind": "gpu",
      "memory_bytes": 25769803776
    },
    {
      "name": "gpu:1",
      "kind": "gpu",
      "memory_bytes": 12884901888
    },
    {
      "name": "gpu:2",
      "kind": "gpu",
      "memory_bytes": null
    }
  ],
  "owners": [
    {
      "pattern": "embedding/*",
      "device": "host"
    },
    {
      "pattern": "*",
      "device": "gpu:0"
    }
  ],
  "replicas": [
    {
      "share": 320,
      "num_micro_batches": 8,
      "in_flight": 2,
      "schedule": "1f1b",
      "stages": [
        {
          "device": "gpu:0",
          "layers": [
            "embedding",
            "block_[0-5]"
          ]
        },
        {
          "device": "gpu:1",
          "layers": [
            "block_[6-9]",
            "head"
          ]
        }
      ]
    },
    {
      "share": 64,
      "num_micro_batches": 1,
      "in_flight": 1,
      "schedule": "1f1b",
      "stages": [
        {
          "device": "gpu:2",
          "layers": [
            "*"
          ]
        }
      ]
    }
  ],
  "recompute": [
    "block_*",
    "head"
  ],
  "batch_norm": "synchronized",
  "predicted": {
    "step_seconds": 0.123,
    "peak_bytes": {
      "gpu:0": 21474836480,
      "host": 2147483648
    },
    "busy_seconds": {
      "gpu:0": 0.1,
      "gpu:1": 0.0625
    },
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


def test_golden_text() -> None:
    assert examples.HYBRID.to_json() == GOLDEN
    assert Plan.from_json(GOLDEN) == examples.HYBRID


@settings(max_examples=150)
@given(plans())
def test_round_trip(plan: Plan) -> None:
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    assert Plan.from_json(text).to_json() == text


@settings(max_examples=100)
@given(plans(), st.data())
def test_no_key_is_ignored(plan: Plan, data: st.DataObject) -> None:
    """A key with a letter more, anywhere in the text, is an error that names it."""
    fields = json.loads(plan.to_json())
    places = list(_objects(fields))
    place = data.draw(st.sampled_from(range(len(places))))
    key = data.draw(st.sampled_from(sorted(places[place])))
    places[place][f"{key}x"] = 1
    with pytest.raises(PlanError) as caught:
        Plan.from_json(json.dumps(fields))
    assert caught.value.code == "PLAN-023"
    assert repr(f"{key}x") in caught.value.what


def test_predictions_without_busy_seconds_are_read() -> None:
    """As plans were written before."""
    fields = json.loads(examples.HYBRID.to_json())
    del fields["predicted"]["busy_seconds"], fields["predicted"]["batch_size"]
    read = Plan.from_json(json.dumps(fields)).predicted
    assert read is not None
    assert (dict(read.busy_seconds), read.batch_size) == ({}, None)
    assert read.step_seconds == 0.123


@settings(max_examples=100)
@given(plans(), st.data())
def test_any_value_anywhere_is_a_plan_or_a_plan_error(plan: Plan, data: st.DataObject) -> None:
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
        ),
        max_leaves=4,
    )
    fields = json.loads(plan.to_json())
    places = list(_objects(fields))
    place = data.draw(st.sampled_from(range(len(places))))
    key = data.draw(st.sampled_from(sorted(places[place])))
    places[place][key] = data.draw(values)
    try:
        read = Plan.from_json(json.dumps(fields))
    except PlanError:
        return
    assert Plan.from_json(read.to_json()) == read
    assert str(read)


@pytest.mark.parametrize(
    ("share", "text"),
    [(320.0, "320"), (0.625, "0.625"), (1e22, "1e+22"), (2.0**53 - 1, "9007199254740991")],
)
def test_whole_shares_are_written_as_such(share: float, text: str) -> None:
    written = Plan.data_parallel(["cpu:0", "cpu:1"], shares=[share, 0.0]).to_json()
    assert f'"share": {text},' in written
    assert '"share": 0,' in written


def test_what_has_a_default_may_be_left_out() -> None:
    text = """{
      "version": 1,
      "owners": "central",
      "devices": [{"name": "cpu:0", "kind": "cpu"}],
      "replicas": [{"share": 1, "stages": [{"device": "cpu:0"}]}]
    }"""
    assert Plan.from_json(text) == Plan.data_parallel(["cpu:0"], owners="central")


def _objects(value: object):
    """Yield the objects whose keys are fixed: all but bytes and seconds by device."""
    if isinstance(value, dict):
        yield value
        for key, inner in value.items():
            if key not in ("peak_bytes", "busy_seconds"):
                yield from _objects(inner)
    if isinstance(value, list):
        for inner in value:
            yield from _objects(inner)
