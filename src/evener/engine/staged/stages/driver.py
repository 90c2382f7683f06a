"""One step of a program whose plan has stages, micro-batches or activations computed again.

Every micro-batch of every replica is a *piece* of the global batch. Pieces are to the rest of
the engine what replicas without stages are: each gives its part of the loss, of the metrics
and of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from evener.engine.ownership import device_name, tf_device
from evener.engine.staged import batch, split
from evener.engine.staged.clock import Stopwatch
from evener.engine.staged.context import whole_batch
from evener.engine.staged.program import Program, StepInput, StepResult
from evener.engine.staged.reduction import Gradient
from evener.engine.staged.replica import ReplicaInput, ReplicaOutput
from evener.engine.staged.stages.assignment import assign, check_patterns
from evener.engine.staged.stages.functions import CutReplica, Cutter
from evener.engine.staged.stages.pins import check_pins
from evener.engine.staged.stages.pipeline import Begin, Pipeline
from evener.engine.staged.stages.trace import flat, trace
from evener.errors import warn
from evener.plan import (
    Replica,
    Schedule,
    computing_devices,
    forward_schedule_for,
    schedule_for,
)


class StagedFunctions:
    """What the replicas of a program compute, stage by stage, made when first needed.

    Args:
        program: The program; what it has decided so far is traced.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._made: dict[Any, CutReplica] = {}

    def trace(self, data: Any, *, training: bool) -> None:
        """Make the functions for batches of a kind.

        Args:
            data: Tensors or specs of a global batch.
            training: Whether for training or for testing.
        """
        given = _spec_of(split.unpack(data))
        for replica in self._program.plan.replicas:
            self.of(replica, given, "train" if training else "test")

    def made_for_training(self, replica: Replica) -> CutReplica | None:
        """Return the functions of a replica's training step, if it was traced."""
        patterns = tuple(stage.layers for stage in replica.stages)
        for (kind, others, *_), cut in self._made.items():
            if kind == "train" and others == patterns:
                return cut
        return None

    def of(self, replica: Replica, given: ReplicaInput, kind: str) -> CutReplica:
        """Return the functions of a replica.

        Args:
            replica: Says how it is cut.
            given: The tensors, or the specs, of one micro-batch.
            kind: ``"train"``, ``"test"`` or ``"predict"``.
        """
        spec = _spec_of(given.batch)
        patterns = tuple(stage.layers for stage in replica.stages)
        accumulate = replica.num_micro_batches > 1
        key = (kind, patterns, accumulate, replica.schedule, _hashable(spec))
        if key not in self._made:
            # Lifted out of the step that is being traced: it is made once for all steps.
            with tf.init_scope(), whole_batch():
                self._made[key] = self._make(replica, spec, kind, accumulate=accumulate)
        return self._made[key]

    def _make(
        self, replica: Replica, spec: ReplicaInput, kind: str, *, accumulate: bool
    ) -> CutReplica:
        program = self._program
        forward = program.replica
        plan = program.plan
        for number, stage in enumerate(replica.stages):
            check_patterns(program.model, stage.layers, f"Stage {number}")
        check_patterns(program.model, plan.recompute, "The plan's recompute")

        def function(weights: Any, state: Any, given: Any) -> Any:
            if kind == "predict":
                return forward.predict(weights, state, given)
            return forward.forward(weights, state, given, training=kind == "train")

        weights = [tf.TensorSpec(v.shape, v.dtype) for v in forward.trainable]
        state = [tf.TensorSpec(v.shape, v.dtype) for v in forward.state]
        traced = trace(program.model, function, [weights, state, spec])
        check_pins(program.model, traced.calls, replica.stages)
        assignment = assign(traced, [stage.layers for stage in replica.stages], plan.recompute)
        cutter = Cutter(
            traced,
            assignment,
            num_weights=len(weights),
            num_state=len(state),
            jit_compile=program.jit_compile,
        )
        counts = {"num_weights": len(weights), "num_static": len(weights) + len(state)}
        if kind != "train":
            stages = cutter.forward_only()
            return CutReplica(trace=traced, stages=stages, denominators=None, **counts)
        stages = cutter.with_backward(
            batch.targets(program, traced.outputs),
            accumulate=accumulate,
            weights_later=replica.schedule == "zero_bubble",
        )
        divisors = traced.outputs.denominators
        denominators = cutter.of_inputs(divisors, "denominators") if divisors else None
        for stage in stages:
            found = dict(stage.gradient.weights) if stage.gradient else {}
            forward.learn_slices([found.get(k) for k in range(len(weights))])
        cut = CutReplica(trace=traced, stages=stages, denominators=denominators, **counts)
        _warn_of_strays(program, replica, cut)
        return cut


def _warn_of_strays(program: Program, replica: Replica, cut: CutReplica) -> None:
    """Name the weights that were put somewhere because their path names no stage's layer."""
    if program.plan.owners != "sharded" or not program.plan.is_staged:
        return
    # The model's own weights belong to no layer: they may be needed in every stage.
    of_layers = {id(v) for call in cut.trace.calls for v in call.layer.trainable_variables}
    strays = [
        variable.path
        for stage, given in zip(cut.stages, replica.stages, strict=True)
        for variable in (program.replica.trainable[k] for k in cut.weights_of(stage))
        if id(variable) in of_layers
        and device_name(variable.value.device) != given.device
        and not computing_devices(variable.path, program.plan.replicas)
    ]
    if strays:
        warn(
            "ENG-046",
            f"{len(strays)} variables live away from their stage, {strays[0]!r} among them.",
            why="Where a variable lives is decided by its path when it is made, and the paths of "
            "these name no layer of the plan's stages: a model inside a model leaves its own "
            "name out. They are sent to their stage in every step.",
            fix="Say where they live, for example owners={'attention/*': 'gpu:0'}, or make the "
            "inner model a keras.layers.Layer.",
            stacklevel=2,
        )


def forward_backward(
    program: Program, functions: StagedFunctions, step: StepInput, scale: tf.Tensor
) -> StepResult:
    """Run every replica through its stages, forward and backward.

    Args:
        program: The program.
        functions: Its functions.
        step: The global batch, cut into pieces.
        scale: The optimizer's loss scale, float32 scalar.
    """
    work = [_Work(program, functions, step, number) for number in range(program.num_replicas)]
    seeds = _Begin(program, step, work, scale)
    stopwatch = Stopwatch(program)
    outputs: list[ReplicaOutput] = []
    columns: list[list[Gradient]] = [[] for _ in program.replica.trainable]
    for one in work:
        started = [stopwatch.start(one.number, one.pieces[0]), *one.pieces[1:]]
        pipeline = one.run(started, schedule_for(one.replica), seeds.begin(one))
        outputs.extend(one.outputs(pipeline))
        parts = pipeline.gradients()
        stopwatch.stop(one.number, flat(parts))
        for column, more in zip(columns, parts, strict=True):
            column.extend(more)
    stopwatch.record([one.whole() for one in work])
    values, total = seeds.loss(outputs)
    gradients = [*_rows(columns), *seeds.of_weights]
    return StepResult(outputs=outputs, gradients=gradients, values=values, total=total)


def forward(program: Program, functions: StagedFunctions, step: StepInput, kind: str) -> list[Any]:
    """Run every replica forward; return the outputs of every piece.

    Args:
        program: The program.
        functions: Its functions.
        step: The global batch, cut into pieces.
        kind: ``"test"`` or ``"predict"``.
    """
    outputs = []
    for number in range(program.num_replicas):
        work = _Work(program, functions, step, number, kind)
        outputs.extend(work.outputs(work.run(work.pieces, forward_schedule_for(work.replica))))
    return outputs


class _Work:
    """What one replica has to do in one step."""

    def __init__(
        self,
        program: Program,
        functions: StagedFunctions,
        step: StepInput,
        number: int,
        kind: str = "train",
    ) -> None:
        self._program = program
        self.number = number
        self.replica = program.plan.replicas[number]
        self.places = [k for k, piece in enumerate(program.pieces) if piece.replica == number]
        self.pieces = [step.pieces[k] for k in self.places]
        self.cut = functions.of(self.replica, self.pieces[0], kind)
        self.devices = [tf_device(stage.device) for stage in self.replica.stages]

    def run(
        self, pieces: Sequence[ReplicaInput], schedule: Schedule, begin: Begin | None = None
    ) -> Pipeline:
        """Run the tasks of a schedule; return the pipeline with what they have made."""
        states = [self._program.borrow_state(k, self.devices[0]) for k in self.places]
        pipeline = Pipeline(
            self.cut,
            self.devices,
            self._program.replica.trainable,
            [[*state, *flat(given)] for state, given in zip(states, pieces, strict=True)],
            begin,
        )
        pipeline.run(schedule)
        return pipeline

    def outputs(self, pipeline: Pipeline) -> list[Any]:
        """Return the outputs of every micro-batch."""
        outputs = self.cut.trace.outputs
        return [pipeline.outputs(k, outputs) for k in range(len(self.places))]

    def denominators(self, piece: int) -> list[tf.Tensor]:
        """Return the computed denominators of a micro-batch."""
        function = self.cut.denominators
        if function is None:
            return []
        weights = [v.value for v in self._program.replica.trainable]
        state = self._program.borrow_state(self.places[piece], self.devices[0])
        inputs = [*weights, *state, *flat(self.pieces[piece])]
        position = {id(t): k for k, t in enumerate(self.cut.trace.inputs)}
        with tf.device(self.devices[0]):
            return function([tf.identity(inputs[position[id(t)]]) for t in function.feeds])

    def whole(self) -> ReplicaInput:
        """Return the samples of all micro-batches as they are counted."""
        counts = [piece.num_samples for piece in self.pieces]
        return self.pieces[0]._replace(num_samples=tf.add_n(counts))


class _Begin:
    """Where the gradients of a step begin, and its loss."""

    def __init__(
        self, program: Program, step: StepInput, work: Sequence[_Work], scale: tf.Tensor
    ) -> None:
        self._program = program
        self._step = step
        self.of_weights: list[list[Gradient]] = []
        self._gathered: batch.Seeds | None = None
        if program.replica.loss_here:
            computed = [one.denominators(k) for one in work for k in range(len(one.pieces))]
            divisors = batch.divisors_of(program, step, computed)
            self._of_pieces = batch.seeds_from(program, step, divisors, scale)
            return
        # The loss needs the outputs of all pieces, so they are computed twice: once for the
        # loss, and once more, a few at a time, to be differentiated.
        first: list[ReplicaOutput] = []
        for one in work:
            first.extend(one.outputs(one.run(one.pieces, forward_schedule_for(one.replica))))
        self._gathered = batch.gathered(program, step, first, scale)
        self._of_pieces = self._gathered.of_pieces
        self.of_weights = self._gathered.of_weights

    def begin(self, work: _Work) -> Begin:
        """Return the gradient that begins at each output of each micro-batch of a replica."""
        targets = batch.targets(self._program, work.cut.trace.outputs)
        position = {id(target): k for k, target in enumerate(targets)}

        def of(micro_batch: int, tensor: tf.Tensor) -> tf.Tensor | None:
            place = position.get(id(tensor))
            return None if place is None else self._of_pieces[work.places[micro_batch]][place]

        return of

    def loss(self, outputs: list[ReplicaOutput]) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return the value of every compiled loss, and the loss, over the global batch."""
        if self._gathered is not None:
            return self._gathered.values, self._gathered.total
        return batch.loss_of(self._program, self._step, outputs, training=True)


def _rows(columns: Sequence[Sequence[Gradient]]) -> list[list[Gradient]]:
    """Return gradients by contributor, None where a variable has fewer."""
    most = max((len(column) for column in columns), default=0)
    return [[c[k] if k < len(c) else None for c in columns] for k in range(most)]


def _spec_of(data: Any) -> ReplicaInput:
    shapes = keras.tree.map_structure(split.spec_of_any_size, split.unpack(data))
    scalar: Any = tf.TensorSpec([], tf.float32)
    count: Any = tf.TensorSpec([], tf.int32)
    return ReplicaInput(batch=shapes, num_samples=count, weight=scalar)


def _hashable(spec: ReplicaInput) -> Any:
    """Return what tells specs apart."""
    return tuple(map(repr, keras.tree.flatten(spec.batch))), repr(
        keras.tree.map_structure(lambda _: 0, spec.batch)
    )
