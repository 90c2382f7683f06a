"""Replicas apart: one pure function, traced once, called on every device.

The gradient is taken inside the function, so the backward pass runs where the forward pass
ran, and XLA can compile both as one. Before it can run, the function is told what its
numerators weigh in the loss of the whole batch (`totals.coefficients`). Where that depends
on masks or weights, a second function computes those first; TensorFlow prunes it to just
that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import tensorflow as tf

from evener.engine import added, split, totals
from evener.engine.clock import Stopwatch
from evener.engine.replica import ReplicaInput, ReplicaOutput
from evener.engine.together import StepResult

if TYPE_CHECKING:
    from evener.engine.program import StepProgram


class Functions(NamedTuple):
    """The traced functions of a program.

    Attributes:
        train: (weights, state, given, coefficients, scale) -> (outputs, gradients).
        denominators: (weights, state, given) -> computed denominators.
        test: (weights, state, given) -> outputs.
        predict: (weights, state, given) -> outputs of the model.
    """

    train: Any
    denominators: Any
    test: Any
    predict: Any


def traced_functions(program: StepProgram) -> Functions:
    """Return new traced functions for what a program's replica computes."""
    replica = program.replica

    def train(
        weights: list[tf.Tensor],
        state: list[tf.Tensor],
        given: ReplicaInput,
        coefficients: list[tf.Tensor],
        scale: tf.Tensor,
    ) -> tuple[ReplicaOutput, list[Any]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            outputs = replica.forward(weights, state, given, training=True)
        targets = [*outputs.numerators, *outputs.added]
        kinds = program.kinds_of_added()
        seeds = [*coefficients, *(scale * added.part_weight(kind, given.weight) for kind in kinds)]
        seeds = [tf.cast(s, t.dtype) for s, t in zip(seeds, targets, strict=True)]
        return outputs, tape.gradient(targets, weights, output_gradients=seeds)

    def denominators(
        weights: list[tf.Tensor], state: list[tf.Tensor], given: ReplicaInput
    ) -> list[tf.Tensor]:
        return replica.forward(weights, state, given, training=True).denominators

    def test(
        weights: list[tf.Tensor], state: list[tf.Tensor], given: ReplicaInput
    ) -> ReplicaOutput:
        return replica.forward(weights, state, given, training=False)

    def compiled(function: Any) -> Any:
        return tf.function(
            function,
            reduce_retracing=True,
            autograph=False,
            jit_compile=True if program.jit_compile else None,
        )

    return Functions(
        train=compiled(train),
        denominators=tf.function(denominators, reduce_retracing=True, autograph=False),
        test=compiled(test),
        predict=compiled(replica.predict),
    )


def _specs(program: StepProgram, data: Any) -> tuple[Any, Any, ReplicaInput]:
    def of_variable(variable: Any) -> tf.TensorSpec:
        return tf.TensorSpec(variable.shape, variable.dtype)

    count: Any = tf.TensorSpec([], tf.int32)
    weight: Any = tf.TensorSpec([], tf.float32)
    batch = keras.tree.map_structure(split.spec_of_any_size, data)
    given = ReplicaInput(batch=batch, num_samples=count, weight=weight)
    weights = [of_variable(v) for v in program.replica.trainable]
    return weights, [of_variable(v) for v in program.replica.state], given


def trace(program: StepProgram, data: Any) -> None:
    """Trace the replica's forward pass once, for what only tracing tells."""
    data = split.unpack(data)
    weights, state, given = _specs(program, data)
    if program.together:
        program.functions.test.get_concrete_function(weights, state, given)
        return
    scalar = tf.TensorSpec([], tf.float32)
    program.functions.train.get_concrete_function(
        weights, state, given, [scalar] * len(program.loss_weights), scalar
    )


def probe_added(program: StepProgram, data: Any) -> tuple[list[float], list[float], list[float]]:
    """Return the added losses on two halves of some samples, and on both together.

    The model is called as for inference, where it adds as many losses as in training:
    dropout and batch statistics would blur what is looked for.
    """
    data = split.unpack(data)
    half = min(added.HALF, int(split.batch_size(data)) // 2)
    if half:
        one, other = split.take(data, 0, half), split.take(data, half, 2 * half)
    else:
        one = other = split.take(data, 0, 1)
    weights, state = program.borrow(0)

    def values(batch: Any, training: bool) -> list[float]:
        given = ReplicaInput(batch=batch, num_samples=split.batch_size(batch), weight=tf.ones([]))
        outputs = program.replica.forward(weights, state, given, training=training)
        return [float(term) for term in outputs.added]

    num_added = program.replica.num_added
    training = len(values(one, training=False)) != num_added
    batches = (one, other, split.join([one, other]))
    first, second, third = (values(batch, training) for batch in batches)
    program.replica.num_added = num_added
    return first, second, third


def forward_backward(
    program: StepProgram,
    data: Any,
    inputs: list[ReplicaInput],
    *,
    scale: tf.Tensor,
    num_samples: tf.Tensor,
    cuts: tf.Tensor,
) -> StepResult:
    """Run every replica forward and backward; see `together.forward_backward`."""
    del cuts
    borrowed = [program.borrow(k) for k in range(len(inputs))]
    divisors = _divisors(program, borrowed, inputs, num_samples)
    coefficients = totals.coefficients(program.loss_weights, divisors, scale)
    stopwatch = Stopwatch(program.strategy.sharing)
    outputs, gradients = [], []
    for k, (device, given) in enumerate(zip(program.devices, inputs, strict=True)):
        given = stopwatch.start(program, k, given)
        with tf.device(device):
            out, grads = program.functions.train(*borrowed[k], given, coefficients, scale)
        stopwatch.stop(program, k, [*out.numerators, *grads])
        outputs.append(out)
        gradients.append(grads)
    stopwatch.record(inputs)
    values, total = program.batch_loss(data, outputs, inputs, num_samples, training=True)
    return StepResult(outputs=outputs, gradients=gradients, values=values, total=total)


def _divisors(
    program: StepProgram, borrowed: list[Any], inputs: list[ReplicaInput], num_samples: tf.Tensor
) -> list[tf.Tensor]:
    kinds = program.replica.denominators
    computed: list[list[tf.Tensor]] = [[] for _ in inputs]
    if "computed" in kinds:
        for k, (device, given) in enumerate(zip(program.devices, inputs, strict=True)):
            with tf.device(device):
                computed[k] = program.functions.denominators(*borrowed[k], given)
    return totals.denominators(kinds, computed, num_samples)
