"""The Plan as a value: layouts, owners, builders, equality, shares, tables."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import itertools
import math
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evener.plan import (
    DeviceName,
    OwnerRule,
    Plan,
    PlanDevice,
    Predicted,
    Replica,
    Stage,
    check_shares,
    owner_of,
    parse_device_name,
    split_batch,
)
from unit.plan import examples
from unit.plan.strategies import LAYOUTS, plans, share_lists


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
    back = plan.with_shares(examples.HYBRID.shares)
    assert back == dataclasses.replace(examples.HYBRID, predicted=None)
    assert examples.HYBRID.with_shares([320, 64]) == examples.HYBRID


@given(plans())
def test_equal_plans_hash_alike_and_travel(plan: Plan) -> None:
    same = pickle.loads(pickle.dumps(plan))
    assert same == plan == copy.deepcopy(plan)
    assert len({plan, same}) == 1
    plan.check_devices([*plan.device_names, "gpu:99"])


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


def test_parts_are_frozen_slotted_and_named() -> None:
    plan = examples.HYBRID
    replica = plan.replicas[0]
    parts = [plan, plan.devices[0], plan.owners[0], replica, replica.stages[0], plan.predicted]
    for part in (*parts, plan.rejected[0]):
        assert not hasattr(part, "__dict__")
        field = dataclasses.fields(part)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, field, None)
        with pytest.raises(TypeError):
            type(part)(getattr(part, field))
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.predicted.peak_bytes.pairs = ()


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


any_shares = st.integers(1, 12).flatmap(share_lists)


@pytest.mark.parametrize(
    ("num_samples", "shares", "sizes"),
    [
        (512, [320, 192], (320, 192)),
        (512, [0.625, 0.375], (320, 192)),
        (10, [1, 1, 1], (3, 4, 3)),
        (0, [1, 2], (0, 0)),
        (1, [1, 1], (1, 0)),
        (1, [1, 1, 1], (0, 1, 0)),
        (2, [1, 1, 1], (1, 0, 1)),
        (1, [0.4, 0.6], (0, 1)),
        (7, [0, 1, 0], (0, 7, 0)),
        (7, [0.0, 3e-320], (0, 7)),
        (5, [1e100, 1e100], (3, 2)),
        (100, [0.7, 0.2, 0.1], (70, 20, 10)),
    ],
)
def test_split_literally(num_samples: int, shares: list[float], sizes: tuple[int, ...]) -> None:
    assert split_batch(num_samples, shares) == sizes


@settings(max_examples=200)
@given(st.integers(0, 100_000) | st.integers(0, 2**50), st.integers(0, 1000), any_shares)
def test_sizes_add_up_near_the_ideal_and_cuts_never_go_back(
    num_samples: int, more: int, shares: list[float]
) -> None:
    sizes = split_batch(num_samples, shares)
    assert len(sizes) == len(shares)
    assert sum(sizes) == num_samples
    total = math.fsum(shares)
    for size, share in zip(sizes, shares, strict=True):
        assert size >= 0
        assert size == 0 or share > 0
        # Beyond, doubles are not exact.
        assert num_samples > 100_000 or abs(size - num_samples * share / total) <= 1 + 1e-9
    after = itertools.accumulate(split_batch(min(num_samples + more, 2**50), shares))
    for cut, later in zip(itertools.accumulate(sizes), after, strict=True):
        assert cut <= later


@given(st.integers(0, 2**50), st.lists(st.integers(0, 2**30), min_size=1, max_size=8))
def test_shares_that_are_sizes_are_kept(_: int, sizes: list[int]) -> None:
    if any(sizes):
        assert split_batch(sum(sizes), sizes) == tuple(sizes)


@given(any_shares)
def test_checked_shares_are_equal_doubles(shares: list[float]) -> None:
    checked = check_shares(shares, num_expected=len(shares))
    assert checked == tuple(shares)
    assert all(type(share) is float for share in checked)


TABLES = {
    "DATA_PARALLEL": """\
Plan: data parallel, 2 devices, 2 replicas

Devices
 device   kind    memory
─────────────────────────
 cpu:0    cpu    unknown
 cpu:1    cpu    unknown

Owners
  sharded: every variable on one device, spread by bytes

Replicas
                    of a    micro-       in
 replica   share   batch   batches   flight   stage   device   layers
──────────────────────────────────────────────────────────────────────
       0     320   62.5%         1        1       0   cpu:0    *
       1     192   37.5%         1        1       0   cpu:1    *""",
    "HYBRID": """\
Plan: hybrid, 3 devices, 2 replicas

Devices
 device   kind     memory
──────────────────────────
 gpu:0    gpu    24.0 GiB
 gpu:1    gpu    12.0 GiB
 gpu:2    gpu     unknown

Owners (the first match wins)
 variables     owner
─────────────────────
 embedding/*   host
 *             gpu:0

Replicas
                    of a    micro-       in
 replica   share   batch   batches   flight   stage   device   layers
────────────────────────────────────────────────────────────────────────────────
       0     320   83.3%         8        2       0   gpu:0    embedding,
                                                               block_[0-5]
                                                  1   gpu:1    block_[6-9],
                                                               head
       1      64   16.7%         1        1       0   gpu:2    *
  schedule 1f1b

Recomputed in the backward pass
  block_*, head

Predicted: 123.0 ms a step
 device       peak   of its memory
───────────────────────────────────
 gpu:0    20.0 GiB           83.3%
 host      2.0 GiB               -

Rejected
 layout          why
────────────────────────────────────────────────────────────────────────────────
 data parallel   even split: gpu:1 needs 17.2 GiB and has 11.9 GiB, which is
                 5.3 GiB too little even with 8 micro-batches and recomputation""",
}


@pytest.mark.parametrize("name", TABLES)
def test_literal_table(name: str) -> None:
    assert str(getattr(examples, name)) == TABLES[name]


def test_other_layouts_differ_in_their_lines() -> None:
    central, pipeline = str(examples.CENTRAL), str(examples.PIPELINE)
    assert central.startswith("Plan: central storage, 2 devices, 2 replicas\n")
    assert "\nOwners\n  central: every variable on the host (cpu:0)\n" in central
    assert pipeline.startswith("Plan: pipeline, 2 devices, 1 replica\n")
    assert "       0       1   100.0%         8        2       0   gpu:0    embedding," in pipeline
    assert pipeline.endswith("Recomputed in the backward pass\n  encoder_*")


@pytest.mark.parametrize("wish", ["FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "LINES"])
def test_terminal_and_environment_change_nothing(
    wish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(wish, "40")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert str(examples.HYBRID) == TABLES["HYBRID"]


def test_no_word_is_broken() -> None:
    names = ("a_layer_with_a_name_of_its_own_that_is_longer_than_most_names", "head")
    long = str(Plan.pipeline({"worker:0/gpu:0": names[0], "worker:10/gpu:11": names[1]}))
    assert all(word in long for word in (*names, "worker:0/gpu:0", "worker:10/gpu:11"))
    for plan in (examples.DATA_PARALLEL, examples.CENTRAL, examples.PIPELINE, examples.HYBRID):
        assert max(map(len, str(plan).splitlines())) <= 80


@given(plans())
def test_every_plan_is_plain_narrow_text(plan: Plan) -> None:
    lines = str(plan).split("\n")
    assert "\x1b" not in str(plan)
    assert all(line == line.rstrip() for line in lines)
    for device in plan.devices:
        assert device.name in str(plan)


def test_brackets_are_no_markup() -> None:
    replica = dataclasses.replace(
        examples.ONE_DEVICE.replicas[0], stages=(Stage(device="gpu:0", layers=("[red]a[/red]",)),)
    )
    assert "[red]a[/red]" in str(dataclasses.replace(examples.ONE_DEVICE, replicas=(replica,)))


def test_examples_of_the_page_run() -> None:
    page = Path(__file__).parents[3] / "docs" / "plan.md"
    failed, attempted = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert attempted > 15
    assert failed == 0
