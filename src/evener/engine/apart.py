"""Replicas apart: one pure function, traced once, called on every device.

The gradient is taken inside the function, so the backward pass runs where the forward pass
ran, and XLA can compile both as one. Before it can run, the function is told what its
numerators weigh in the loss of the whole batch (`totals.coefficients`). Where that depends
on masks or weights, a second function computes those first; TensorFlow prunes it to just
that.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from evener.engine import added, batch, split, totals
from evener.engine.clock import Stopwatch
from evener.engine.program import Program, StepInput, StepResult
from evener.engine.reduction import Gradient, free_from_order
from evener.engine.replica import ReplicaInput, ReplicaOutput

_Weights = list[tf.Tensor]


class Functions:
    """What a program's replica computes, as traced functions.

    Args:
        program: The program; what it has decided so far is traced.

    Attributes:
        train: (weights, state, given, coefficients, scale) -> (outputs, gradients).
        denominators: (weights, state, given) -> computed denominators.
        test: (weights, state, given) -> outputs.
        predict: (weights, state, given) -> outputs of the model.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.train = self._traced(self._train, jit_compile=program.jit_compile)
        self.test = self._traced(self._test, jit_compile=program.jit_compile)
        self.predict = self._traced(program.replica.predict, jit_compile=program.jit_compile)
        self.denominators = self._traced(self._denominators, jit_compile=False)

    def _traced(self, function: Any, *, jit_compile: bool) -> Any:
        return tf.function(
            function, reduce_retracing=True, autograph=False, jit_compile=jit_compile or None
        )

    def _train(
        self,
        weights: _Weights,
        state: list[tf.Tensor],
        given: ReplicaInput,
        coefficients: list[tf.Tensor],
        scale: tf.Tensor,
    ) -> tuple[ReplicaOutput, list[Gradient]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            outputs = self._program.replica.forward(weights, state, given, training=True)
        targets = [*outputs.numerators, *outputs.added]
        kinds = self._program.kinds_of_added(training=True)
        seeds = [*coefficients, *added.seeds(kinds, given.weight, scale)]
        seeds = [tf.cast(s, t.dtype) for s, t in zip(seeds, targets, strict=True)]
        gradients: Any = tape.gradient(targets, weights, output_gradients=seeds)
        self._program.replica.learn_slices(gradients)
        return outputs, gradients

    def _denominators(
        self, weights: _Weights, state: list[tf.Tensor], given: ReplicaInput
    ) -> list[tf.Tensor]:
        return self._program.replica.forward(weights, state, given, training=True).denominators

    def _test(
        self, weights: _Weights, state: list[tf.Tensor], given: ReplicaInput
    ) -> ReplicaOutput:
        return self._program.replica.forward(weights, state, given, training=False)

    def trace(self, data: Any, *, training: bool) -> None:
        """Trace the forward pass once, for what only tracing tells.

        Args:
            data: Tensors or specs of a global batch.
            training: Whether to trace it as for training.
        """
        replica = self._program.replica
        weights = [tf.TensorSpec(v.shape, v.dtype) for v in replica.trainable]
        state = [tf.TensorSpec(v.shape, v.dtype) for v in replica.state]
        shapes = keras.tree.map_structure(split.spec_of_any_size, split.unpack(data))
        count: Any = tf.TensorSpec([], tf.int32)
        scalar: Any = tf.TensorSpec([], tf.float32)
        given = ReplicaInput(batch=shapes, num_samples=count, weight=scalar)
        if not training:
            self.test.get_concrete_function(weights, state, given)
            return
        if self._program.together:
            # Never run: the replicas will be traced side by side.
            self.denominators.get_concrete_function(weights, state, given)
            return
        coefficients = [scalar] * len(self._program.loss_weights)
        self.train.get_concrete_function(weights, state, given, coefficients, scalar)


def forward_backward(
    program: Program, functions: Functions, step: StepInput, scale: tf.Tensor
) -> StepResult:
    """Run every replica forward and backward, each by itself.

    Args:
        program: The program.
        functions: Its traced functions.
        step: The global batch, split.
        scale: The optimizer's loss scale, float32 scalar.
    """
    borrowed = [program.borrow(k) for k in range(len(step.pieces))]
    divisors = batch.divisors_of(program, step, _computed(program, functions, borrowed, step))
    coefficients = totals.coefficients(program.loss_weights, divisors, scale)
    stopwatch = Stopwatch(program)
    outputs, gradients = [], []
    for k, (device, given) in enumerate(zip(program.devices, step.pieces, strict=True)):
        started = stopwatch.start(k, given)
        with tf.device(device):
            out, grads = functions.train(*borrowed[k], started, coefficients, scale)
        free_from_order([out, grads])
        stopwatch.stop(k, [*out.numerators, *grads])
        outputs.append(out)
        gradients.append(grads)
    stopwatch.record(step.pieces)
    values, total = batch.loss_of(program, step, outputs, training=True)
    return StepResult(outputs=outputs, gradients=gradients, values=values, total=total)


def _computed(
    program: Program, functions: Functions, borrowed: list[Any], step: StepInput
) -> list[list[tf.Tensor]]:
    """Return each replica's computed denominators; lists are empty where none is needed."""
    computed: list[list[tf.Tensor]] = [[] for _ in step.pieces]
    if "computed" in program.replica.denominators:
        for k, (device, given) in enumerate(zip(program.devices, step.pieces, strict=True)):
            with tf.device(device):
                computed[k] = functions.denominators(*borrowed[k], given)
    return computed
