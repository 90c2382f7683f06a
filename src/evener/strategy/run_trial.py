"""Trial of plans while a strategy trains: each tried step is a step of the run.

::

    step of the run ──► current plan of the trial ──► partitioned by it ──► seconds
                              first steps of a plan: the variables are copied before;
                              if it fails, they are put back, and a plan that worked takes the batch

Variables stay with the owners that they have: the plans differ in who computes. The results are
those of one device under each of them, so changes between steps are not seen in the numbers.

Where Keras leaves it to the machine whether XLA compiles a step (``jit_compile="auto"``), a plan is
tried without XLA too. A step that draws random numbers is not: XLA draws others.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import tensorflow as tf

from evener.base.text import format_seconds
from evener.partition.tasks import HOST
from evener.plan import Plan
from evener.planner.rebalancing import PlanTrial
from evener.strategy.prepared import PreparedStep

R = TypeVar("R")

_Variables: TypeAlias = dict[int, tf.Variable]

_MOST_OTHERS = 16
"""Steps of other functions that train, in a row, after which the trial begins with them."""


@dataclass(frozen=True, slots=True)
class TriedWay:
    """Plan to run a step by, and whether XLA compiles it."""

    plan: Plan
    by_xla: bool = True

    def __str__(self) -> str:
        """Return a few words for it.

        >>> str(TriedWay(Plan.data_parallel(["cpu:0"]), by_xla=False))
        'cpu:0 alone without XLA'
        """
        return name_of(self.plan) + ("" if self.by_xla else " without XLA")


class RunTrial:
    """Trial of plans by a function that trains: the first, or the one that trains after it."""

    def __init__(
        self,
        ways: Sequence[TriedWay],
        prepared: list[PreparedStep],
        *,
        start: int,
        under: Callable[[int], AbstractContextManager[None]],
        settle: Callable[[int], None],
        tell: Callable[[str], object],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._ways = tuple(ways)
        self._trial = PlanTrial(len(self._ways), start=start)
        self._under, self._settle = under, settle
        self._tell, self._clock = tell, clock
        self._step: object = None
        # By step: its variables. They end with the step.
        self._training: weakref.WeakKeyDictionary[Any, _Variables] = weakref.WeakKeyDictionary()
        self._drawing: weakref.WeakSet[Any] = weakref.WeakSet()
        self._prepared = prepared
        self._num_others = 0
        self._cannot_change = False

    @property
    def is_over(self) -> bool:
        return self._trial.is_over

    @property
    def start(self) -> int:
        return self._trial.start

    @property
    def current(self) -> int:
        return self._trial.current

    def run(
        self,
        step: object,
        run: Callable[[int], R],
        *,
        repeatable: Callable[[], Callable[[int], R] | None] | None = None,
        may_leave_xla: bool = False,
    ) -> R:
        traced = self._take_prepared()
        if self._cannot_change:
            return self._keep_start(run)
        if step is not self._step:
            return self._observe(step, run, may_leave_xla)
        self._num_others = 0
        self._trains(step, traced)
        if not self._trial.is_unproven:
            return self._timed(run)
        again = run if repeatable is None else repeatable()
        return self._keep_start(run) if again is None else self._attempt(again)

    def _keep_start(self, run: Callable[[int], R]) -> R:
        self._trial.stop()
        self._settle_if_over()
        return run(self.start)

    def _take_prepared(self) -> list[PreparedStep]:
        traced = list(self._prepared)
        self._prepared.clear()
        self._cannot_change = self._cannot_change or not all(p.can_change_plan for p in traced)
        return traced

    def _trains(self, step: object, traced: Sequence[PreparedStep]) -> bool:
        """Keep the variables of what was traced for a step; return whether the step trains."""
        if step not in self._training and any(prepared.trains for prepared in traced):
            self._training[step] = {}
        if any(prepared.draws_numbers() for prepared in traced):
            self._drawing.add(step)
        if step in self._training:
            self._training[step] |= {
                id(variable): variable for prepared in traced for variable in prepared.variables
            }
        return step in self._training

    def _observe(self, step: object, run: Callable[[int], R], may_leave_xla: bool) -> R:
        """Run a step by the first plan; begin the trial with it if no other step trains now."""
        began = self._clock()
        result = run(self.start)
        seconds = self._clock() - began
        traced = self._take_prepared()
        if not self._cannot_change and self._trains(step, traced):
            self._num_others += 1
            if self._step is None or self._num_others > _MOST_OTHERS:
                self._step = step
                is_free = may_leave_xla and step not in self._drawing
                num_ways = sum(way.by_xla or is_free for way in self._ways)
                self._trial = PlanTrial(num_ways, start=self.start)
                self._trial.record(seconds)
        return result

    def _timed(self, run: Callable[[int], R]) -> R:
        with self._under(self.current):
            began = self._clock()
            result = run(self.current)
            tf.test.experimental.sync_devices()
            seconds = self._clock() - began
        self._trial.record(seconds)
        self._settle_if_over()
        return result

    def _attempt(self, run: Callable[[int], R]) -> R:
        """Run a step by a plan that may fail; if it does, by one that worked."""
        saved = _copies(self._training[self._step].values())
        try:
            return self._timed(run)
        except (StopIteration, tf.errors.OutOfRangeError):
            # The data of an epoch has ended: nothing was trained.
            raise
        except Exception as error:
            for variable, value in saved:
                variable.assign(value)
            why = str(error).partition("\n")[0] or type(error).__name__
            way = self._ways[self.current]
            self._tell(f"{way} does not work here, and is not used: {why}")
            self._trial.fail()
            self._settle_if_over()
        with self._under(self.start):
            return run(self.start)

    def _settle_if_over(self) -> None:
        if not self._trial.is_over:
            return
        self._settle(self._trial.current)
        self._step = None
        self._training.clear()
        self._drawing.clear()
        tried = [
            f"{self._ways[number]} {format_seconds(seconds)}"
            for number in range(self._trial.num_plans)
            if (seconds := self._trial.median_seconds(number)) is not None
        ]
        if tried:
            kept = self._ways[self._trial.current]
            self._tell(f"tried in steps of this run: {', '.join(tried)} a step; {kept} stays")


def _copies(variables: Any) -> list[tuple[tf.Variable, tf.Tensor]]:
    with tf.device(HOST):
        return [(variable, tf.identity(variable.read_value())) for variable in variables]


def name_of(plan: Plan) -> str:
    """Return a few words for a plan.

    >>> name_of(Plan.data_parallel(["cpu:0"]))
    'cpu:0 alone'
    >>> name_of(Plan.data_parallel(["cpu:0", "cpu:1"]))
    'even shares on cpu:0, cpu:1'
    >>> name_of(Plan.data_parallel(["cpu:0", "cpu:1"], shares=[3, 1], num_micro_batches=4))
    'shares 0.75 0.25 on cpu:0, cpu:1 in 4 micro-batches'
    """
    devices = ", ".join(dict.fromkeys(s.device for r in plan.replicas for s in r.stages))
    if plan.is_staged:
        text = f"{plan.layout} on {devices}"
    elif len(plan.replicas) == 1:
        text = f"{devices} alone"
    elif len(set(plan.shares)) == 1:
        text = f"even shares on {devices}"
    else:
        shares = " ".join(f"{share / sum(plan.shares):.2f}" for share in plan.shares)
        text = f"shares {shares} on {devices}"
    count = max(replica.num_micro_batches for replica in plan.replicas)
    return f"{text} in {count} micro-batches" if count > 1 else text
