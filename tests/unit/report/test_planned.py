"""The printed cost of a plan, and its pictures: the stages, and a step over time.

Forward passes of the layers a and b take 1 and 2 s for a sample, backward passes twice as long.
"""

from __future__ import annotations

import dataclasses
import doctest
import itertools
import re
from pathlib import Path

import pytest

from evener.base.terminal import text_of
from evener.clusters import cluster_named, cluster_names, datasheet_profile, model_named
from evener.plan import Plan, PlanDevice, Replica, Stage
from evener.planner import check_plan, plan_profile
from evener.planner.prediction import predict_plan
from evener.profile import Cluster, CostProfile, Link
from evener.report.planned import (
    devices_label,
    print_planned,
    shortened,
    stage_lines,
    step_lines,
    time_lines,
)
from unit.planner.by_hand import FREE, cluster_of, profile_of

PAGE = Path(__file__).parents[3] / "docs" / "planning.md"

DATA_PARALLEL = Plan.data_parallel(["gpu:0", "gpu:1"], shares=[2, 1])
PIPELINE = Plan.pipeline({"worker:0/gpu:0": "a", "worker:1/gpu:0": "b"}, num_micro_batches=4)
HYBRID = Plan(
    devices=tuple(PlanDevice.named(f"gpu:{k}") for k in range(10)),
    replicas=(
        Replica(
            share=8,
            stages=(Stage(device="gpu:0", layers=("a",)), Stage(device="gpu:1", layers=("b",))),
            num_micro_batches=4,
            in_flight=2,
            schedule="gpipe",
        ),
        *(Replica(share=2, stages=(Stage(device=f"gpu:{k}"),)) for k in range(2, 10)),
    ),
)

DRAWN_DATA_PARALLEL = """\
       ┌────────────────┐
 gpu:0 │ a..b  2 layers │ 4 samples, 66.7%
       ├────────────────┤
 gpu:1 │ a..b  2 layers │ 2 samples, 33.3%
       └────────────────┘
 > forward, < backward, = transfers, u update, . idle
 gpu:0  >>>>>>>>>>>>>>>>>>>>>>><<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<<u
 gpu:1  =========>>>>>>>>>>><<<<<<<<<<<<<<<<<<<<<<<<...........................
        0                                                                36.5 s"""

DRAWN_PIPELINE = """\
                ┌──────────────────┐
 worker:0/gpu:0 │ a        1 layer │ 8 samples, 100.0%, 4 micro-batches
                ╞═▼ 4 B, 25 GB/s ══╡
 worker:1/gpu:0 │ b        1 layer │
                └──────────────────┘
 > forward, < backward, u update, . idle, 0 1 2: the micro-batch
 worker:0/gpu:0  0>1>>...........0<<<2>>.......1<<<3>.......2<<<<.........3<<<u
 worker:1/gpu:0  ..0>>>>0<<<<<<<<1>>>1<<<<<<<<<2>>>2<<<<<<<<3>>>>3<<<<<<<<....u
                 0                                                       54.5 s"""

DRAWN_HYBRID = """\
                 ┌────────────────┐
 gpu:0           │ a      1 layer │ 8 samples, 33.3%, 4 micro-batches
                 ├─▼ 4 B ─────────┤
 gpu:1           │ b      1 layer │
                 ├────────────────┤
 gpu:2..gpu:9 x8 │ a..b  2 layers │ 2 samples, 8.3% each
                 └────────────────┘
 > forward, < backward, u update, . idle, 0 1 2: the micro-batch
 gpu:0            0>1>..............1<<<....0<<<2>3>..............3<<<....2<<<u
 gpu:1            ..0>>>1>>>1<<<<<<<0<<<<<<<......2>>>3>>>3<<<<<<<2<<<<<<<....u
 gpu:2..gpu:9 x8  >>>>>><<<<<<<<<<<<...........................................
                  0                                                   1 min 0 s"""


def two_machines() -> Cluster:
    return dataclasses.replace(cluster_of(1, 1), network=Link(bytes_per_second=25e9))


def drawn(plan: Plan, profile: CostProfile, batch_size: int, width: int) -> list[str]:
    planned = check_plan(plan, profile, batch_size)
    return [*stage_lines(planned, width), *step_lines(planned, width)]


@pytest.mark.parametrize(
    ("plan", "cluster", "batch_size", "wanted"),
    [
        (DATA_PARALLEL, cluster_of(2), 6, DRAWN_DATA_PARALLEL),
        (PIPELINE, two_machines(), 8, DRAWN_PIPELINE),
        (HYBRID, cluster_of(10, link=FREE), 24, DRAWN_HYBRID),
    ],
    ids=["data parallel", "pipeline", "hybrid"],
)
def test_the_whole_picture(plan: Plan, cluster: Cluster, batch_size: int, wanted: str) -> None:
    assert "\n".join(drawn(plan, profile_of(cluster), batch_size, 80)) == wanted


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("model", ["bert-large", "resnet-50"])
@pytest.mark.parametrize("cluster", cluster_names())
def test_no_line_is_wider_than_the_terminal(cluster: str, model: str, width: int) -> None:
    described = cluster_named(cluster)
    profile = datasheet_profile(model_named(model), described)
    names = [device.name for device in described.cluster.devices]
    plans = [Plan.data_parallel(names, num_micro_batches=2)]
    if 2 <= len(names) <= len(profile.model.layers):
        stages = [*zip(names, _cut(profile, len(names)), strict=True)]
        plans.append(Plan.pipeline(stages, num_micro_batches=4))
    for plan in plans:
        lines = drawn(plan, profile, 4 * len(names), width)
        assert max(map(len, lines)) <= width
        assert len(lines) < 60


def test_wide_enough_for_the_numbers_of_micro_batches_or_none_at_all() -> None:
    profile = profile_of(two_machines())
    assert "0 1 2: the micro-batch" in "\n".join(drawn(PIPELINE, profile, 8, 80))
    narrow = drawn(PIPELINE, profile, 8, 40)
    assert not any("0>" in line or "0<" in line for line in narrow)
    assert "the micro-batch" not in "\n".join(narrow)
    plan = Plan.data_parallel(["worker:0/gpu:0", "worker:1/gpu:0"])
    told = " ═ between machines: 25 GB/s; gradients of 2 machines are added up over it"
    assert told in drawn(plan, profile, 8, 80)


def test_the_rows_are_to_scale() -> None:
    profile = profile_of(cluster_of(2))
    found = predict_plan(DATA_PARALLEL, profile, 6)
    planned = check_plan(DATA_PARALLEL, profile, 6)
    first, second = (line.split()[1] for line in step_lines(planned, 110)[1:3])
    assert len(first) == len(second)
    seconds = found.step_seconds / len(first)
    assert first.count(">") * seconds == pytest.approx(4 * 3, abs=seconds)
    assert first.count("<") * seconds == pytest.approx(4 * 6, abs=seconds)
    waiting = found.replicas[1].communication_seconds
    assert second.count("=") * seconds == pytest.approx(waiting, abs=2 * seconds)


def test_a_device_with_several_stages_has_one_row_of_time() -> None:
    stages = [("gpu:0", "a"), ("gpu:1", "b"), ("gpu:0", "c"), ("gpu:1", "d")]
    a, b = profile_of(cluster_of(2)).model.layers
    pairs = zip("abcd", (a, b, a, b), strict=True)
    layers = [dataclasses.replace(layer, name=name) for name, layer in pairs]
    profile = profile_of(cluster_of(2))
    model = dataclasses.replace(profile.model, layers=tuple(layers))
    times = {"one": profile.times["one"] * 2}
    profile = dataclasses.replace(profile, model=model, times=times)
    planned = check_plan(Plan.pipeline(stages, num_micro_batches=4), profile, 8)
    assert [line.split()[0] for line in stage_lines(planned, 80)[1::2]] == [
        "gpu:0", "gpu:1", "gpu:0", "gpu:1",
    ]  # fmt: skip
    assert [line.split()[0] for line in step_lines(planned, 80)[1:]] == ["gpu:0", "gpu:1", "0"]


def test_no_more_rows_than_a_person_reads() -> None:
    names = [f"gpu:{k}" for k in range(20)]
    plan = Plan.data_parallel(names, shares=range(1, 21))
    profile = profile_of(cluster_of(20))
    lines = drawn(plan, profile, 210, 80)
    assert " and 8 more devices in 8 replicas" in lines
    assert "gpu:12" not in "\n".join(lines)
    assert sum(">" in line and "gpu" in line for line in lines) == 12


def test_a_pipeline_of_many_stages_is_drawn_whole() -> None:
    described = cluster_named("v100-8-p100-8")
    profile = datasheet_profile(model_named("bert-large"), described)
    names = [device.name for device in described.cluster.devices]
    stages = [*zip(names, _cut(profile, len(names)), strict=True)]
    planned = check_plan(Plan.pipeline(stages, num_micro_batches=4), profile, 16)
    text = "\n".join(stage_lines(planned, 80))
    assert all(name in text for name in names)


@pytest.mark.long
def test_it_stands_beside_the_table() -> None:
    profile = datasheet_profile(model_named("bert-large-128"), cluster_named("rtx3090-rtx3060"))
    planned = plan_profile(profile, 32)
    text = text_of(lambda console: print_planned(planned, console), 100)
    for line in (*stage_lines(planned, 100), *step_lines(planned, 100)):
        assert line.strip() in text
    assert text.index("What each device computes") < text.index("The step over time")


def test_replicas_of_stages_are_folded() -> None:
    def replica(first: int) -> Replica:
        stages = (("a", first), ("b", first + 1))
        return Replica(
            share=4,
            num_micro_batches=2,
            in_flight=2,
            stages=tuple(Stage(device=f"gpu:{k}", layers=(name,)) for name, k in stages),
        )

    plan = Plan(
        devices=tuple(PlanDevice.named(f"gpu:{k}") for k in range(6)),
        replicas=tuple(map(replica, (0, 2, 4))),
    )
    lines = drawn(plan, profile_of(cluster_of(6, link=FREE)), 12, 80)
    assert lines[1].startswith(" gpu:0..gpu:4 x3 │ a")
    assert lines[3].startswith(" gpu:1..gpu:5 x3 │ b")
    assert lines[1].endswith("4 samples, 33.3% each, 2 micro-batches")


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (["gpu:0"], "gpu:0"),
        (["gpu:0", "gpu:2"], "gpu:0, gpu:2"),
        (["gpu:0", "gpu:2", "gpu:4"], "gpu:0..gpu:4 x3"),
        ([f"worker:1/gpu:{k}" for k in range(3)], "worker:1/gpu:0..gpu:2 x3"),
        ([f"worker:{k}/gpu:0" for k in range(3)], "worker:0/gpu:0..worker:2/gpu:0 x3"),
    ],
)
def test_devices_in_one_label(names: list[str], label: str) -> None:
    assert devices_label(names) == label
    for width in (1, 2, 5, len(label), len(label) + 1):
        assert len(shortened(label, width)) == min(width, len(label))


@pytest.mark.long
def test_the_examples_of_the_page_run() -> None:
    failed, attempted = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert attempted > 8
    assert failed == 0


def _cut(profile: CostProfile, num_stages: int) -> list[list[str]]:
    """Return the layers in as many stages of about the same number."""
    names = [layer.name for layer in profile.model.layers]
    cuts = [round(len(names) * k / num_stages) for k in range(num_stages + 1)]
    return [names[a:b] for a, b in itertools.pairwise(cuts)]


def test_the_time_that_belongs_to_no_replica_is_told() -> None:
    profile = profile_of(cluster_of(2, link=FREE), overhead=0.5)
    planned = check_plan(DATA_PARALLEL, profile, 6)
    slowest = max(replica.seconds for replica in planned.prediction.replicas)
    assert planned.prediction.step_seconds == pytest.approx(slowest + 0.5)
    assert list(time_lines(planned))[-1].startswith("plus 500.0 ms in each step")
    none = check_plan(DATA_PARALLEL, profile_of(cluster_of(2, link=FREE)), 6)
    assert not any("plus " in line for line in time_lines(none))


DEVICES = ("worker:0/gpu:0", "worker:0/gpu:1", "worker:0/gpu:2", "worker:1/gpu:0")


def printed(width: int, num_samples: int = 64) -> list[str]:
    profile = datasheet_profile(model_named("resnet-50"), cluster_named("rtx3090-3-1"))
    planned = check_plan(Plan.data_parallel(DEVICES), profile, num_samples)
    return text_of(lambda console: print_planned(planned, console), width).splitlines()


def test_no_line_is_wider_than_the_terminal_and_no_row_is_broken() -> None:
    lines = printed(80)
    assert max(len(line.rstrip()) for line in lines) <= 80
    for device in DEVICES:
        (row,) = [line for line in lines if re.match(rf" {device} +\[", line)]
        assert re.fullmatch(r".*\[[#fgaw ]{16}\] +[\d.]+ [KMG]iB +[\d.]+ GiB +\w.*", row.rstrip())


def test_a_plan_that_fills_its_devices_has_no_margin() -> None:
    assert "No margin" not in " ".join(printed(80))
    lines = printed(60, 2200)
    start = next(number for number, line in enumerate(lines) if line.startswith("No margin"))
    assert "worker:0/gpu:0 to 9" in " ".join(lines[start : start + 3])
    assert max(map(len, lines[start : start + 5])) <= 60


def test_wider_terminals_have_longer_bars_and_a_legend() -> None:
    assert any(re.search(r"\[[#fgaw ]{24}\]", line) for line in printed(120))
    assert "f weights of other devices" in " ".join(printed(120))
