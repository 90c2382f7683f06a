"""The functions of every stage: forward, backward, and the gradients of weights apart.

      forward    what comes from earlier stages ──► what later ones need, and what is kept
      backward   gradients of what was handed on, and what was kept
                                                ──► gradients of what came, and of weights
      weights    (zero-bubble) what backward has left ──► gradients of weights

What depends on weights alone is computed again rather than kept, so a weight in half
precision does not stay in memory once for every micro-batch that is alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from evener.engine.staged.stages.assignment import Assignment
from evener.engine.staged.stages.cut import (
    CutFunction,
    Instead,
    in_order,
    itself,
    operations_between,
)
from evener.engine.staged.stages.gradients import StageGradient, differentiate
from evener.engine.staged.stages.same import Group, Same
from evener.engine.staged.stages.trace import Trace, flat

_BackwardCuts = tuple[CutFunction | None, CutFunction | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFunctions:
    """What one stage computes.

    Attributes:
        forward: Its forward pass.
        backward: Its backward pass, or None if nothing is to be differentiated.
        weight_gradients: The rest of it, if the gradients of weights come later. Where there
            are several micro-batches, small gradients are added to sums that are given.
        gradient: What the backward pass begins with and ends in.
        kept: What the forward pass makes for the backward pass alone.
    """

    forward: CutFunction
    backward: CutFunction | None
    weight_gradients: CutFunction | None
    gradient: StageGradient | None
    kept: tuple[tf.Tensor, ...]

    @property
    def of_backward(self) -> list[CutFunction]:
        """The functions of the backward pass, those that there are."""
        functions = (self.backward, self.weight_gradients)
        return [function for function in functions if function is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutReplica:
    """The functions of one replica's stages.

    Attributes:
        trace: The forward pass that they were cut from.
        stages: One per stage.
        denominators: Computes the computed denominators, if there are any.
        num_weights: How many of the trace's inputs are weights; they come first.
        num_static: How many of them are weights or state.
    """

    trace: Trace
    stages: list[StageFunctions]
    denominators: CutFunction | None
    num_weights: int
    num_static: int

    def weights_of(self, stage: StageFunctions) -> list[int]:
        """Return the positions of the weights that a stage computes with."""
        functions = (stage.forward, *stage.of_backward)
        fed = {id(tensor) for function in functions for tensor in function.feeds}
        weights = self.trace.inputs[: self.num_weights]
        return [k for k, tensor in enumerate(weights) if id(tensor) in fed]


class Cutter:
    """Cuts a traced forward pass into the functions of its stages.

    Args:
        trace: The forward pass.
        assignment: The stages of its operations.
        num_weights: How many of the trace's inputs are weights; they come first.
        num_state: How many after them are state.
        jit_compile: Whether XLA compiles the functions.
    """

    def __init__(
        self,
        trace: Trace,
        assignment: Assignment,
        *,
        num_weights: int,
        num_state: int,
        jit_compile: bool,
    ) -> None:
        self._trace = trace
        self._assignment = assignment
        self._num_weights = num_weights
        self._jit_compile = jit_compile
        self._inputs = {id(t): k for k, t in enumerate(trace.inputs)}
        self._captured = {placeholder.op for _, placeholder in trace.captured}
        self._static = _static_operations(trace, num_weights + num_state)
        self._outputs: list[list[tf.Tensor]] = [[] for _ in range(assignment.num_stages)]
        for tensor in flat(trace.outputs):
            self._outputs[assignment.home_of(tensor)].append(tensor)
        self._kept_regions = self._results_of_regions()
        self._same: Instead = itself

    def forward_only(self) -> list[StageFunctions]:
        """Return the functions of a forward pass."""
        received, _ = self._needs()
        nothing = [None] * self._assignment.num_stages
        self._merge(received, nothing)
        return self._assemble(nothing, [(None, None)] * len(nothing))

    def with_backward(
        self, targets: Sequence[tf.Tensor], *, accumulate: bool, weights_later: bool
    ) -> list[StageFunctions]:
        """Return the functions of a forward and backward pass.

        Args:
            targets: Outputs of the trace where the gradient begins.
            accumulate: Whether gradients add up over micro-batches.
            weights_later: Whether gradients of weights have a function of their own.
        """
        received, used = self._needs()
        gradients = differentiate(
            self._trace, self._assignment, received, targets, used, accumulate=accumulate
        )
        self._merge(received, gradients)
        cuts = [
            (None, None) if g is None else self._backward(stage, g, weights_later=weights_later)
            for stage, g in enumerate(gradients)
        ]
        return self._assemble(gradients, cuts)

    def of_inputs(self, fetches: Sequence[tf.Tensor], name: str) -> CutFunction:
        """Return the function that computes tensors from the inputs of the trace alone."""
        operations, feeds = operations_between(
            fetches, lambda t: id(t) in self._inputs, same=self._same
        )
        return self._cut(operations, feeds, fetches, name)

    def _merge(
        self,
        received: Sequence[Sequence[tf.Tensor]],
        gradients: Sequence[StageGradient | None],
    ) -> None:
        """Find out what is the same within a stage: forward, backward, or computed again."""
        backward = {
            op: ("backward", stage)
            for stage, gradient in enumerate(gradients)
            if gradient is not None
            for op in gradient.operations
        }
        stages, regions = self._assignment.stages, self._assignment.regions

        def group_of(op: tf.Operation) -> Group:
            return backward.get(op) or ("forward", stages.get(op), regions.get(op))

        crossing = [tensor for tensors in received for tensor in tensors]
        themselves = {id(t) for t in [*flat(self._trace.outputs), *crossing]}
        themselves |= self._kept_regions
        self._same = Same(self._trace.graph, group_of, themselves).of

    def _needs(self) -> tuple[list[list[tf.Tensor]], list[dict[int, tf.Tensor]]]:
        """Return what each stage receives, and the weights it uses."""
        num_stages = self._assignment.num_stages
        received: list[list[tf.Tensor]] = [[] for _ in range(num_stages)]
        used: list[dict[int, tf.Tensor]] = [{} for _ in range(num_stages)]
        wanted = [list(outputs) for outputs in self._outputs]
        for stage in reversed(range(num_stages)):
            _, feeds = operations_between(wanted[stage], self._fed_forward(stage))
            for tensor in feeds:
                position = self._inputs.get(id(tensor))
                if position is None:
                    received[stage].append(tensor)
                    wanted[self._assignment.home_of(tensor)].append(tensor)
                elif position < self._num_weights:
                    used[stage][position] = tensor
        return received, used

    def _fed_forward(self, stage: int) -> Any:
        def is_fed(tensor: tf.Tensor) -> bool:
            home = self._assignment.stage_of(tensor)
            return id(tensor) in self._inputs or (home is not None and home != stage)

        return is_fed

    def _fed_backward(self, stage: int, gradient: StageGradient) -> Any:
        def is_fed(tensor: tf.Tensor) -> bool:
            op = tensor.op
            if op.type == "Placeholder":
                return op not in self._captured
            if op in gradient.operations or op not in self._assignment.stages:
                return False
            home = self._assignment.stages[op]
            if home is None or op in self._static:
                return False
            return home != stage or not self._computed_again(tensor)

        return is_fed

    def _computed_again(self, tensor: tf.Tensor) -> bool:
        again = tensor.op in self._assignment.regions and not tensor.op.op_def.is_stateful
        return again and id(tensor) not in self._kept_regions

    def _results_of_regions(self) -> set[int]:
        """Return what a call that is computed again gives to the rest; it is kept."""
        regions = self._assignment.regions
        outputs = {id(t) for t in flat(self._trace.outputs)}
        return {
            id(tensor)
            for op, region in regions.items()
            for tensor in op.outputs
            if id(tensor) in outputs
            or any(regions.get(user) != region for user in tensor.consumers())
        }

    def _backward(
        self, stage: int, gradient: StageGradient, *, weights_later: bool
    ) -> _BackwardCuts:
        """Return the backward pass, and what is left of it for later."""
        totals = {k: total for k, _, total in gradient.sums}
        of_weights = flat([totals.get(k, g) for k, g in gradient.weights])
        of_inputs = [g for _, g in gradient.inputs]
        fed = self._fed_backward(stage, gradient)
        if not weights_later:
            fetches = [*of_inputs, *of_weights]
            return self._cut_backward(stage, gradient, fetches, fed, "backward"), None
        done, _ = operations_between(of_inputs, fed, same=self._same)

        def fed_later(tensor: tf.Tensor) -> bool:
            return fed(tensor) or (tensor.op in done and bool(tensor.op.inputs))

        later = self._cut_backward(stage, gradient, of_weights, fed_later, "weights")
        left = [t for t in later.feeds if t.op in done and not fed(t)]
        now = self._cut_backward(stage, gradient, [*of_inputs, *left], fed, "backward")
        return now, later

    def _cut_backward(
        self,
        stage: int,
        gradient: StageGradient,
        fetches: Sequence[tf.Tensor],
        fed: Any,
        name: str,
    ) -> CutFunction:
        """Cut a backward pass; what is computed again waits for the gradient of its results."""
        operations, feeds = operations_between(fetches, fed, same=self._same)
        regions = self._assignment.regions
        later = {}
        for op in operations:
            region = regions.get(op)
            inside = (t.op for t in map(self._same, op.inputs) if not fed(t))
            if region is None or region not in gradient.regions:
                continue
            if not any(regions.get(o) == region for o in inside):
                later[op] = gradient.regions[region]
        return self._cut(operations, feeds, fetches, f"{name}_{stage}", later)

    def _assemble(
        self,
        gradients: Sequence[StageGradient | None],
        cuts: Sequence[_BackwardCuts],
    ) -> list[StageFunctions]:
        stages: list[StageFunctions] = []
        wanted = [list(outputs) for outputs in self._outputs]
        for stage in reversed(range(self._assignment.num_stages)):
            backward, later = cuts[stage]
            made_backward = () if backward is None else backward.fetches
            for_backward = [
                tensor
                for function in (backward, later)
                if function is not None
                for tensor in function.feeds
                if self._assignment.stages.get(tensor.op) is not None
                and not any(tensor is made for made in made_backward)
            ]
            for tensor in for_backward:
                wanted[self._assignment.home_of(tensor)].append(tensor)
            forward = self._forward(stage, wanted)
            handed = {id(t) for t in self._outputs[stage]}
            kept = [t for t in for_backward if self._assignment.home_of(t) == stage]
            stages.append(
                StageFunctions(
                    forward=forward,
                    backward=backward,
                    weight_gradients=later,
                    gradient=gradients[stage],
                    kept=tuple({id(t): t for t in kept if id(t) not in handed}.values()),
                )
            )
        return stages[::-1]

    def _forward(self, stage: int, wanted: list[list[tf.Tensor]]) -> CutFunction:
        fetches = list({id(t): t for t in wanted[stage]}.values())
        stateful = [
            op
            for op, home in self._assignment.stages.items()
            if home == stage and op.op_def.is_stateful and op.type != "Placeholder"
        ]
        operations, feeds = operations_between(
            fetches, self._fed_forward(stage), stateful, self._same
        )
        for tensor in feeds:
            if id(tensor) not in self._inputs:
                wanted[self._assignment.home_of(tensor)].append(tensor)
        return self._cut(operations, feeds, fetches, f"forward_{stage}")

    def _cut(
        self,
        operations: set[tf.Operation],
        feeds: Sequence[tf.Tensor],
        fetches: Sequence[tf.Tensor],
        name: str,
        later: Any = None,
    ) -> CutFunction:
        made = [op for op in self._trace.graph.get_operations() if op not in self._captured]
        return CutFunction(
            in_order([op for op in made if op in operations], self._same),
            feeds,
            fetches,
            captured=self._trace.captured,
            later=later,
            same=self._same,
            name=name,
            jit_compile=self._jit_compile,
        )


def _static_operations(trace: Trace, num_static: int) -> set[tf.Operation]:
    """Return the operations that depend on weights and state alone."""
    static = {tensor.op for tensor in trace.inputs[:num_static]}
    moving = {tensor.op for tensor in trace.inputs[num_static:]}
    for op in trace.graph.get_operations()[: trace.num_operations]:
        stateful = op.op_def.is_stateful or op in moving
        if not stateful and all(tensor.op in static for tensor in op.inputs):
            static.add(op)
    return static
