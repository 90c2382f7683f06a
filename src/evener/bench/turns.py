"""Processes of a benchmark, in turns: what disturbs the machine meanwhile disturbs all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from evener.bench.contenders import Contender
from evener.bench.request import StepTimes, TimedRun
from evener.subprocess.answer_file import ask_module


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Result of a contender.

    Attributes:
        contender: Contender.
        rounds: Median seconds of a step, in each round.
        batch_size: Samples of a step; None if unknown.
        problem: Reason why it was not measured; empty if it was.
    """

    contender: Contender
    rounds: tuple[float, ...] = ()
    batch_size: int | None = None
    problem: str = ""

    @property
    def step_seconds(self) -> float | None:
        """Median of the rounds."""
        return median(self.rounds) if self.rounds else None


def measure(
    found: Sequence[Contender],
    request: TimedRun,
    *,
    num_rounds: int,
    limit_seconds: float,
    tell: Callable[[str], object],
) -> list[Measured]:
    """Run every contender in every round, one after the other.

    A contender that fails is left out of later rounds.

    Args:
        found: Contenders.
        request: Script, devices and steps.
        num_rounds: Number of rounds, above 0.
        limit_seconds: Time limit of a process.
        tell: Function that is called with what is measured next.
    """
    results = [Measured(contender=each, problem=each.problem) for each in found]
    for number in range(num_rounds):
        for place, result in enumerate(results):
            if result.problem:
                continue
            tell(f"round {number + 1} of {num_rounds}: {result.contender.name}")
            times = run_once(result.contender, request, limit_seconds=limit_seconds)
            results[place] = _with(result, times)
    sizes = [result.batch_size for result in results if result.batch_size]
    # The batch is that of the script in all of them.
    return [replace(result, batch_size=next(iter(sizes), None)) for result in results]


def run_once(
    contender: Contender, request: TimedRun, *, limit_seconds: float, record: str = ""
) -> StepTimes:
    """Run a contender in a process of its own.

    Args:
        contender: Contender.
        request: Script, devices and steps.
        limit_seconds: Time limit.
        record: Folder for a record of the run; empty for none.
    """
    asked = replace(
        request,
        kind=contender.kind,
        shares=contender.shares,
        plan=contender.plan.to_json() if contender.plan else "",
        jit_compile=contender.jit_compile,
        record=record,
    )
    done, answer = ask_module(
        "evener.bench.child",
        lambda path: replace(asked, answer=path).to_json(),
        limit_seconds=limit_seconds,
    )
    if answer is not None:
        return StepTimes.from_json(answer)
    if done.exit_code is None:
        return StepTimes(problem=f"stopped after {limit_seconds:g} seconds")
    last = (done.output.strip().splitlines() or ["it printed nothing"])[-1]
    return StepTimes(problem=f"ended with code {done.exit_code}: {last[:300]}")


def _with(result: Measured, times: StepTimes) -> Measured:
    if times.problem:
        return replace(result, rounds=(), problem=times.problem)
    return replace(
        result,
        rounds=(*result.rounds, median(times.seconds)),
        batch_size=times.batch_size or result.batch_size,
    )
