"""Device and order of the parts of a step."""

from __future__ import annotations

import dataclasses

import pytest

from evener.errors import EngineError
from evener.partition.layout import Layout, MicroBatch
from evener.plan import (
    Plan,
    Replica,
    Stage,
)
from evener.plan.parts import matches, parts_of_path

STAGES = Plan.pipeline({"cpu:1": ["a*", "top"], "cpu:2": ["b*", "model/*"]}, num_micro_batches=3)
HYBRID = Layout(
    replicas=(
        Replica(share=1, stages=(Stage(device="cpu:3"),)),
        *STAGES.replicas,
    )
)


def test_a_plan_has_a_layout() -> None:
    plan = dataclasses.replace(STAGES, recompute=("a*",))
    assert Layout.of(plan) == Layout(STAGES.replicas, ("a*",))


def test_devices_alone_are_whole_replicas() -> None:
    layout = Layout.of_devices(["cpu:0", "cpu:2"])
    assert layout.micro_batches == (MicroBatch(0, 0), MicroBatch(1, 0))
    assert [layout.device(micro_batch, ()) for micro_batch in (0, 1)] == [
        "/device:CPU:0",
        "/device:CPU:2",
    ]
    assert not layout.is_scheduled
    assert layout.first_stages == (0, 0)


def test_pieces_are_in_the_order_of_the_samples() -> None:
    assert HYBRID.micro_batches == (
        MicroBatch(0, 0),
        MicroBatch(1, 0),
        MicroBatch(1, 1),
        MicroBatch(1, 2),
    )


@pytest.mark.parametrize(
    ("stages", "devices"),
    [
        ((0, 0), ["CPU:3", "CPU:1", "CPU:1", "CPU:1"]),
        ((0, 1), ["CPU:3", "CPU:2", "CPU:2", "CPU:2"]),
    ],
)
def test_a_piece_is_on_the_device_of_its_replicas_stage(
    stages: tuple[int, ...], devices: list[str]
) -> None:
    assert [HYBRID.device(micro_batch, stages)[-5:] for micro_batch in range(4)] == devices


WHOLE = Replica(share=1, stages=(Stage(device="cpu:0"),))


@pytest.mark.parametrize(
    ("layout", "is_scheduled"),
    [
        (Layout((WHOLE, WHOLE)), False),
        (Layout((WHOLE,), ("a*",)), True),
        (Layout((WHOLE, dataclasses.replace(WHOLE, num_micro_batches=2))), True),
        (Layout(Plan.pipeline({"cpu:0": "a*", "cpu:1": "b*"}).replicas), True),
    ],
    ids=["whole", "recompute", "micro-batches", "stages"],
)
def test_what_is_cut(layout: Layout, is_scheduled: bool) -> None:
    assert layout.is_scheduled == is_scheduled


@pytest.mark.parametrize(
    ("path", "stages"),
    [
        ("a0", (0, 0)),
        ("b0/inner", (0, 1)),
        ("none", (0, None)),
        ("", (0, None)),
        # The outermost layer that a stage names decides.
        ("top/b0", (0, 0)),
        ("model/a0", (0, 1)),
        ("other/a0", (0, 0)),
    ],
)
def test_the_stage_of_a_layer(path: str, stages: tuple[int | None, ...]) -> None:
    assert HYBRID.stages_of(path) == stages


def test_a_layer_in_two_stages_is_refused() -> None:
    plan = Plan.pipeline({"cpu:0": ["first", "x*"], "cpu:1": ["*1", "last"]})
    layout = Layout.of(plan)
    assert layout.stages_of("x0") == (0,)
    with pytest.raises(EngineError, match=r"(?s)'x1' is in two stages, 0 and 1.*'x\*'.*'\*1'") as e:
        layout.stages_of("x1/inner")
    assert e.value.code == "ENG-041"


def test_paths_of_layers_around_a_layer() -> None:
    expected = ["a", "a/b", "a/b/c", "b", "b/c", "c"]
    assert parts_of_path("a/b/c") == expected


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("model/block/dense", "block", True),
        ("model/block/dense", "model/block", True),
        ("model/block/dense", "block/de*", True),
        ("model/block/dense", "blo", False),
        ("model/block/dense", "model/dense", False),
        ("model/block_10", "block_1", False),
        ("model/block_10", "block_1?", True),
    ],
)
def test_a_pattern_names_a_layer_or_one_around_it(path: str, pattern: str, expected: bool) -> None:
    assert matches(path, [pattern]) == expected
