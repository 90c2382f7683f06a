from __future__ import annotations

import json
from typing import Any

import pytest

from evener.base.records import from_json, to_json
from evener.base.terminal import text_of
from evener.errors import RunError
from evener.plan import Plan
from evener.run import bench
from evener.run.bench import (
    BenchResult,
    BenchRow,
    Contender,
    TimedRun,
    TimedSteps,
    contenders,
    measure,
    overlapping,
    print_result,
)

PLAN = Plan.data_parallel(["gpu:0", "gpu:1"], shares=[3, 1])


def names(planned: Plan | str = PLAN, *, with_xla: bool = False) -> list[Contender]:
    return contenders(
        ["gpu:0", "gpu:1"], spec="all", words="train.py -n 3", planned=planned, with_xla=with_xla
    )


def test_every_layout_has_the_command_that_gives_it() -> None:
    assert {each.name: each.command for each in names()} == {
        "gpu:0 alone": "evener run --devices gpu:0 train.py -n 3",
        "MirroredStrategy": "",
        "evener, even shares": "evener run --devices all --shares even train.py -n 3",
        "evener, measured shares": "evener run --devices all train.py -n 3",
        "evener, planned: data parallel": "evener run --devices all --plan auto train.py -n 3",
    }
    assert [each.problem for each in names("PLAN-012: too large")][-1] == "PLAN-012: too large"
    with_xla = names(with_xla=True)
    assert len(with_xla) == 2 * len(names())
    assert [each.jit_compile for each in with_xla[:2]] == [False, True]


def test_requests_and_answers_cross_a_process_boundary() -> None:
    layout = Contender(name="planned", plan=PLAN, jit_compile=False)
    request = TimedRun(target="t.py", args=("a b",), layout=layout)
    assert from_json(to_json(request), TimedRun) == request
    times = TimedSteps(seconds=(0.1, 0.2), batch_size=8)
    assert from_json(to_json(times), TimedSteps) == times


def test_contenders_run_in_turns_and_one_that_fails_runs_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[str] = []

    def run_once(contender: Contender, request: TimedRun, *, limit_seconds: float) -> TimedSteps:
        ran.append(contender.name)
        if contender.kind == "mirrored":
            return TimedSteps(problem="no NCCL")
        size = 32 if contender.shares is None else None
        return TimedSteps(seconds=(9.0, float(len(ran)), 0.0), batch_size=size)

    monkeypatch.setattr(bench, "run_once", run_once)
    found = [
        Contender(name="a"),
        Contender(name="b", kind="mirrored"),
        Contender(name="c", shares="even"),
        Contender(name="d", problem="no plan"),
    ]
    told: list[str] = []
    rows = measure(found, TimedRun(target="t"), num_rounds=2, limit_seconds=1, tell=told.append)
    assert ran == ["a", "b", "c", "a", "c"]
    assert told[0] == "round 1 of 2: a"
    assert [row.rounds for row in rows] == [(1.0, 4.0), (), (3.0, 5.0), ()]
    assert [row.problem for row in rows] == ["", "no NCCL", "", "no plan"]
    assert rows[2].batch_size == 32  # of the same script


def test_a_program_that_fails_on_one_device_is_not_tried_on_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[str] = []

    def run(contender: Contender, *_: Any, **__: Any) -> TimedSteps:
        ran.append(contender.name)
        return TimedSteps(problem="KeyError: 'b'", is_failure=True)

    monkeypatch.setattr(bench, "run_once", run)
    layouts = [Contender(name="alone", command="evener run train.py"), Contender(name="even")]
    with pytest.raises(RunError, match="RUN-113") as caught:
        measure(layouts, TimedRun(target="train.py"), num_rounds=2, limit_seconds=1, tell=print)
    assert (caught.value.why, ran) == ("KeyError: 'b'.", ["alone"])
    assert caught.value.fix.endswith("evener run train.py")


def printed(result: BenchResult) -> str:
    return text_of(lambda console: print_result(result, console), 120)


def test_the_table_has_the_spread_the_ratio_and_the_command() -> None:
    alone, mirrored, even, *_ = names()
    result = BenchResult(
        rows=(
            BenchRow(contender=alone, rounds=(0.02, 0.01, 0.03), batch_size=100),
            BenchRow(contender=mirrored, problem="no NCCL"),
            BenchRow(contender=even, rounds=(0.008,), batch_size=100),
        ),
        limit="The network.",
        record="/tmp/r",
    )
    text = printed(result)
    (row,) = [line for line in text.splitlines() if line.strip().startswith("evener, even")]
    assert row.split()[-2:] == ["12,500", "2.50"]
    (row,) = [line for line in text.splitlines() if line.strip().startswith("gpu:0 alone")]
    assert "10.0 ms to 30.0 ms" in row
    assert "MirroredStrategy: no NCCL" in text
    assert "Use: evener run --devices all --shares even train.py -n 3" in text
    fields = json.loads(result.to_json())
    assert fields["fastest"] == "evener, even shares"
    assert fields["rows"][0]["step_seconds"] == 0.02


def test_ranges_that_overlap_are_told() -> None:
    rows = [
        BenchRow(contender=Contender(name="a"), rounds=(0.010, 0.020, 0.030)),
        BenchRow(contender=Contender(name="b"), rounds=(0.029, 0.040, 0.050)),
        BenchRow(contender=Contender(name="c"), rounds=(0.031,)),
        BenchRow(contender=Contender(name="d"), problem="failed"),
    ]
    assert [row.contender.name for row in overlapping(rows[0], rows)] == ["b"]
    assert "overlaps with that of b." in printed(BenchResult(rows=tuple(rows)))
