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

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import tensorflow as tf

from evener._tf_private.patches import setting
from evener.base.text import format_seconds
from evener.devices.names import tf_device
from evener.partition.build import draws_numbers
from evener.partition.tasks import HOST
from evener.plan import Plan
from evener.planner.rebalancing import PlanTrial
from evener.strategy.plans import arrange
from evener.strategy.prepared import PreparedStep, StepContext

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
        >>> str(TriedWay(Plan.data_parallel(["cpu:0", "cpu:1"])))
        'even shares on cpu:0, cpu:1'
        >>> plan = Plan.data_parallel(["cpu:0", "cpu:1"], shares=[3, 1], num_micro_batches=4)
        >>> str(TriedWay(plan))
        'shares 0.75 0.25 on cpu:0, cpu:1 in 4 micro-batches'
        """
        plan = self.plan
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
        if count > 1:
            text += f" in {count} micro-batches"
        return text if self.by_xla else f"{text} without XLA"


class RunTrial:
    """Trial of plans by a function that trains: the first, or the one that trains after it."""

    def __init__(
        self,
        ways: Sequence[TriedWay],
        own: StepContext,
        *,
        start: int,
        tell: Callable[[str], object],
        clock: Callable[[], float],
    ) -> None:
        self._ways = tuple(ways)
        self.choice = PlanTrial(len(self._ways), start=start)
        self.context = own  # That of the steps that run now
        self._contexts = {start: own}
        self._tell, self._clock = tell, clock
        self._step: object = None
        # By step: its variables. They end with the step.
        self._training: weakref.WeakKeyDictionary[Any, _Variables] = weakref.WeakKeyDictionary()
        self._drawing: weakref.WeakSet[Any] = weakref.WeakSet()
        self._prepared = own.records.prepared = list[PreparedStep]()
        self._num_others = 0
        self._cannot_change = False

    def _context_of(self, number: int) -> StepContext:
        if number not in self._contexts:
            way, own = self._ways[number], self._contexts[self.choice.start]
            layout, controller = arrange(way.plan, None, measured=False, by_xla=way.by_xla)
            if own.controller.counts:
                stages = [stage for each in way.plan.replicas for stage in each.stages]
                devices = dict.fromkeys(stage.device for stage in stages)
                controller.count([tf_device(name) for name in devices])
            if own.controller.keeps_spans:
                controller.keep_spans()
            self._contexts[number] = dataclasses.replace(
                own, plan=way.plan, layout=layout, controller=controller
            )
        return self._contexts[number]

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
        if not self.choice.is_unproven:
            return self._timed(run)
        again = run if repeatable is None else repeatable()
        return self._keep_start(run) if again is None else self._attempt(again)

    def _keep_start(self, run: Callable[[int], R]) -> R:
        self.choice.stop()
        self._settle_if_over()
        return run(self.choice.start)

    def _take_prepared(self) -> list[PreparedStep]:
        traced = list(self._prepared)
        self._prepared.clear()
        self._cannot_change = self._cannot_change or not all(p.can_change_plan for p in traced)
        return traced

    def _trains(self, step: object, traced: Sequence[PreparedStep]) -> bool:
        """Keep the variables of what was traced for a step; return whether the step trains."""
        if step not in self._training and any(prepared.trains for prepared in traced):
            self._training[step] = {}
        # XLA has other numbers than TensorFlow.
        if any(draws_numbers(node) for prepared in traced for node in prepared.traced.graph):
            self._drawing.add(step)
        if step in self._training:
            self._training[step] |= {
                id(variable): variable for prepared in traced for variable in prepared.variables
            }
        return step in self._training

    def _observe(self, step: object, run: Callable[[int], R], may_leave_xla: bool) -> R:
        """Run a step by the first plan; begin the trial with it if no other step trains now."""
        began, start = self._clock(), self.choice.start
        result = run(start)
        seconds = self._clock() - began
        traced = self._take_prepared()
        if not self._cannot_change and self._trains(step, traced):
            self._num_others += 1
            if self._step is None or self._num_others > _MOST_OTHERS:
                self._step = step
                is_free = may_leave_xla and step not in self._drawing
                num_ways = sum(way.by_xla or is_free for way in self._ways)
                self.choice = PlanTrial(num_ways, start=start)
                self.choice.record(seconds)
        return result

    def _timed(self, run: Callable[[int], R]) -> R:
        with setting(self, context=self._context_of(self.choice.current)):
            began = self._clock()
            result = run(self.choice.current)
            tf.test.experimental.sync_devices()
            seconds = self._clock() - began
        self.choice.record(seconds)
        self._settle_if_over()
        return result

    def _attempt(self, run: Callable[[int], R]) -> R:
        """Run a step by a plan that may fail; if it does, by one that worked."""
        variables = self._training[self._step].values()
        with tf.device(HOST):
            saved = [(variable, tf.identity(variable.read_value())) for variable in variables]
        try:
            return self._timed(run)
        except (StopIteration, tf.errors.OutOfRangeError):
            # The data of an epoch has ended: nothing was trained.
            raise
        except Exception as error:
            for variable, value in saved:
                variable.assign(value)
            why = str(error).partition("\n")[0] or type(error).__name__
            way = self._ways[self.choice.current]
            self._tell(f"{way} does not work here, and is not used: {why}")
            self.choice.fail()
            self._settle_if_over()
        start = self.choice.start
        with setting(self, context=self._context_of(start)):
            return run(start)

    def _settle_if_over(self) -> None:
        if not self.choice.is_over:
            return
        self.context = self._context_of(self.choice.current)
        self.context.records.prepared = None
        self._step = None
        self._training.clear()
        self._drawing.clear()
        tried = [
            f"{self._ways[number]} {format_seconds(seconds)}"
            for number in range(self.choice.num_plans)
            if (seconds := self.choice.median_seconds(number)) is not None
        ]
        if tried:
            kept = self._ways[self.choice.current]
            self._tell(f"tried in steps of this run: {', '.join(tried)} a step; {kept} stays")
