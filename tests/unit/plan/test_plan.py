"""The Plan as a value: layouts, owners, builders, equality, what importing it costs."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given, settings

from evener.errors import PlanError
from evener.plan import (
    DeviceBytes,
    DeviceName,
    OwnerRule,
    Plan,
    PlanDevice,
    Predicted,
    Replica,
    Stage,
    owner_of,
    parse_device_name,
)
from unit.plan import examples
from unit.plan.strategies import LAYOUTS, plans


@pytest.mark.parametrize(
    ("plan", "layout"),
    [
        (examples.ONE_DEVICE, "one device"),
        (examples.DATA_PARALLEL, "data parallel"),
        (examples.CENTRAL, "central storage"),
        (examples.OFFLOADED, "data parallel"),
        (examples.PIPELINE, "pipeline"),
        (examples.HYBRID, "hybrid"),
        (examples.WORKERS, "data parallel"),
        (Plan.data_parallel(["cpu:0", "cpu:1"], owners={"*": "cpu:1"}), "central storage"),
        (Plan.data_parallel(["cpu:0", "cpu:1"], owners={"a/*": "cpu:1"}), "data parallel"),
        (Plan.data_parallel(["cpu:0"], owners="central"), "one device"),
    ],
)
def test_layout_in_words(plan: Plan, layout: str) -> None:
    assert plan.layout == layout


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strategies_draw_every_layout(layout: str) -> None:
    @settings(max_examples=30)
    @given(plans(layouts=[layout]))
    def check(plan: Plan) -> None:
        assert plan.layout == layout

    check()


@given(plans(layouts=["data parallel"], devices=["cpu:0", "cpu:1"]))
def test_strategies_draw_for_given_devices(plan: Plan) -> None:
    assert plan.device_names == ("cpu:0", "cpu:1")
    plan.check_devices(["cpu:0", "cpu:1"])


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("embedding/table", "cpu:0"),
        ("encoder/dense/kernel", "gpu:0"),
        ("encoder/dense/bias", "gpu:1"),
        # The first match wins, though */kernel fits as well.
        ("embedding/kernel", "cpu:0"),
        # Upper and lower case differ.
        ("Embedding/table", "gpu:1"),
    ],
)
def test_first_owner_rule_wins(path: str, owner: str) -> None:
    assert examples.OFFLOADED.owner_of(path) == owner


def test_owner_of_without_a_match() -> None:
    assert owner_of("dense/kernel", [OwnerRule(pattern="dense", device="gpu:0")]) is None
    assert owner_of("dense/kernel", []) is None
    assert examples.DATA_PARALLEL.owner_of("dense/kernel") is None
    assert examples.CENTRAL.owner_of("dense/kernel") == "cpu:0"


@pytest.mark.parametrize(
    ("plan", "device"),
    [
        (examples.ONE_DEVICE, "gpu:0"),
        (examples.CENTRAL, "cpu:0"),
        (examples.DATA_PARALLEL, None),
        (examples.OFFLOADED, None),
        (Plan.data_parallel(["cpu:0", "cpu:1"], owners={"a/*": "cpu:1"}), None),
        (Plan.data_parallel(["gpu:0", "cpu:0"], owners={"a": "host", "*": "cpu:0"}), "cpu:0"),
    ],
)
def test_central_device(plan: Plan, device: str | None) -> None:
    assert plan.central_device == device


def test_host_owns_without_being_a_device() -> None:
    plan = Plan.data_parallel(["gpu:0"], owners={"*": "host"})
    assert plan.owner_of("dense/kernel") == "cpu:0"
    assert plan.device_names == ("gpu:0",)


def test_data_parallel_shares() -> None:
    assert Plan.data_parallel(["cpu:0", "cpu:1"]).fractions == (0.5, 0.5)
    plan = Plan.data_parallel([PlanDevice.named("cpu:0", 5), "cpu:1"], shares=(3, 0))
    assert plan.shares == (3.0, 0.0)
    assert plan.devices[0].memory_bytes == 5
    assert [replica.stages[0].device for replica in plan.replicas] == ["cpu:0", "cpu:1"]


def test_with_shares_keeps_all_but_the_prediction() -> None:
    plan = examples.HYBRID.with_shares([5, 3])
    assert plan.fractions == (0.625, 0.375)
    assert plan.predicted is None
    assert (
        dataclasses.replace(
            plan.with_shares(examples.HYBRID.shares), predicted=examples.HYBRID.predicted
        )
        == examples.HYBRID
    )
    assert examples.HYBRID.with_shares([320, 64]) == examples.HYBRID


def test_with_shares_counts_replicas() -> None:
    with pytest.raises(PlanError, match="more shares than replicas: 3 and 2") as caught:
        examples.HYBRID.with_shares([1, 1, 1])
    assert caught.value.code == "PLAN-010"


@given(plans())
def test_equal_plans_hash_alike_and_travel(plan: Plan) -> None:
    same = pickle.loads(pickle.dumps(plan))
    assert same == plan
    assert hash(same) == hash(plan)
    assert copy.deepcopy(plan) == plan
    assert len({plan, same}) == 1


def test_lists_and_mappings_are_stored_hashable() -> None:
    plan = Plan(
        devices=[PlanDevice.named("cpu:0")],  # type: ignore[arg-type]
        replicas=[Replica(share=1, stages=[Stage(device="cpu:0", layers=["*"])])],  # type: ignore
        predicted=Predicted(step_seconds=1, peak_bytes={"cpu:0": 7, "host": 9}),
    )
    assert isinstance(hash(plan), int)
    assert plan.devices == (PlanDevice.named("cpu:0"),)
    assert plan.predicted is not None
    assert plan.predicted.peak_bytes == {"host": 9, "cpu:0": 7}


def test_numpy_numbers_become_plain() -> None:
    np = pytest.importorskip("numpy")
    plan = Plan(
        devices=(PlanDevice(name="cpu:0", kind="cpu", memory_bytes=np.int64(9)),),
        replicas=(
            Replica(
                share=np.float32(0.5),
                num_micro_batches=np.int32(2),
                stages=(Stage(device="cpu:0"),),
            ),
        ),
    )
    assert Plan.from_json(plan.to_json()) == plan
    assert type(plan.shares[0]) is float
    assert Plan.data_parallel(["cpu:0", "cpu:1"], shares=np.array([3, 1])).shares == (3.0, 1.0)


def test_device_bytes_is_a_frozen_mapping() -> None:
    sizes = DeviceBytes({"gpu:1": 5, "gpu:0": 7})
    assert dict(sizes) == {"gpu:0": 7, "gpu:1": 5}
    assert sizes == DeviceBytes({"gpu:0": 7, "gpu:1": 5})
    assert hash(sizes) == hash(DeviceBytes({"gpu:0": 7, "gpu:1": 5}))
    assert sizes != DeviceBytes({"gpu:0": 7})
    assert "gpu:2" not in sizes
    with pytest.raises(dataclasses.FrozenInstanceError):
        sizes.pairs = ()  # type: ignore[misc]


def test_parts_are_frozen_slotted_and_named() -> None:
    parts = [
        examples.HYBRID,
        examples.HYBRID.devices[0],
        examples.HYBRID.owners[0],
        examples.HYBRID.replicas[0],
        examples.HYBRID.replicas[0].stages[0],
        examples.HYBRID.predicted,
        examples.HYBRID.rejected[0],
    ]
    for part in parts:
        assert not hasattr(part, "__dict__")
        field = dataclasses.fields(part)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, field, None)
        with pytest.raises(TypeError):
            type(part)(getattr(part, field))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gpu:0", DeviceName(kind="gpu", index=0)),
        ("cpu:11", DeviceName(kind="cpu", index=11)),
        ("worker:1/gpu:0", DeviceName(kind="gpu", index=0, worker=1)),
        ("worker:0/cpu:0", DeviceName(kind="cpu", index=0, worker=0)),
    ],
)
def test_device_names(text: str, name: DeviceName) -> None:
    assert parse_device_name(text) == name
    assert str(name) == text


def test_check_devices_takes_more_than_the_plan_needs() -> None:
    examples.HYBRID.check_devices(["gpu:0", "gpu:1", "gpu:2", "gpu:3", "cpu:0"])


def test_importing_plan_imports_no_tensorflow(run_python) -> None:
    run_python(
        """
        import sys
        import evener.plan
        str(evener.plan.Plan.data_parallel(["cpu:0"]))
        heavy = {"tensorflow", "keras", "numpy"} & set(sys.modules)
        assert not heavy, heavy
        """
    )
