"""Losses in a replica: parts of the loss of the whole batch, so that their sum is that loss.

      Keras loss, mean            N_r / B            a part by samples
      with masks, or by weights   N_r / sum of D     what is divided by is added up first
      sum                         N_r
      compute_average_loss        mean of the replica's samples, times b_r / B

`evener.engine.staged.loss` says what numerators and denominators are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from evener import _tf_private
from evener.engine.staged import loss as parts
from evener.engine.staged.loops import run as runs
from evener.engine.staged.loops.run import Run
from evener.engine.staged.loops.scaled import is_sum, note_mean, note_scaled


def call_in_replica(
    original: Callable[..., tf.Tensor],
    loss: Any,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any = None,
) -> tf.Tensor:
    """Return what a Keras loss gives here: in a replica, its part of the batch's loss."""
    here = runs.current()
    if here is None or here[0].is_alone or loss.reduction not in parts.REDUCTIONS:
        return original(loss, y_true, y_pred, sample_weight)
    run, replica = here
    with keras.name_scope(loss.name):
        part = parts.separable_part(loss, y_true, y_pred, sample_weight)
    if part is None:
        return note_scaled(_one_number(run, replica, original(loss, y_true, y_pred, sample_weight)))
    if part.denominator == "one":
        return note_scaled(part.numerator)
    if part.computed is None:
        return note_scaled(by_weight(part.numerator, run, replica))
    return note_scaled(_by_computed(run, replica, part.numerator, part.computed))


def by_weight(value: tf.Tensor, run: Run, replica: int) -> tf.Tensor:
    """Return a mean over a replica's samples as its part of the mean over the batch."""
    return value * tf.cast(run.weight(replica), value.dtype)


def _one_number(run: Run, replica: int, value: tf.Tensor) -> tf.Tensor:
    run.strategy.loop_state.say_once(
        "ENG-064",
        "A loss gives one number for the samples of a replica.",
        why="It is taken for their mean. If it is anything else, such as a term of the "
        "batch as a whole, the weights will differ from those of one device.",
        fix="Let the loss's call() return one number per sample.",
    )
    return by_weight(value, run, replica)


def _by_computed(run: Run, replica: int, total: tf.Tensor, divisor: tf.Tensor) -> tf.Tensor:
    if run.in_one_graph():
        context = tf.distribute.get_replica_context()
        whole = context.all_reduce("SUM", tf.stop_gradient(divisor))
        return tf.math.divide_no_nan(total, tf.cast(whole, total.dtype))
    run.strategy.loop_state.say_once(
        "ENG-065",
        "A loss with a mask or weights is computed inside a function of its own.",
        why="Replicas cannot add up what it is divided by there; each divides by its own. "
        "The weights will differ from those of one device.",
        fix="Call the loss in the function given to strategy.run itself, not in a "
        "@tf.function, loop or condition inside it.",
    )
    return by_weight(tf.math.divide_no_nan(total, divisor), run, replica)


def average_loss(
    original: Callable[..., tf.Tensor],
    per_example_loss: Any,
    sample_weight: Any = None,
    global_batch_size: Any = None,
) -> tf.Tensor:
    """Return what `tf.nn.compute_average_loss` gives here.

    With a global batch size it does what it says. Without one, TensorFlow takes the replica's
    own batch size times the number of replicas; the batch's own size is meant.
    """
    here = runs.current()
    if global_batch_size is not None:
        value = original(per_example_loss, sample_weight, global_batch_size)
        if here is not None and here[0].whole_rows is not None:
            # Every replica computes all of it, and they are added up.
            if here[0].whole_rows == _constant(global_batch_size):
                value = by_weight(value, *here)
        return note_scaled(value)
    if here is None and not runs.is_ours(tf.distribute.get_strategy()):
        return original(per_example_loss, sample_weight)
    if here is None or here[0].is_alone:
        return original(per_example_loss, sample_weight, tf.shape(per_example_loss)[0])
    size = tf.maximum(tf.shape(per_example_loss)[0], 1)
    mean = original(per_example_loss, sample_weight, size)
    return note_scaled(by_weight(mean, *here))


def _constant(number: Any) -> Any:
    return tf.get_static_value(number) if tf.is_tensor(number) else number


def scale(original: Callable[..., tf.Tensor], value: tf.Tensor) -> tf.Tensor:
    """Do what Keras's ``scale_loss_for_distribution`` is for, exactly."""
    if not runs.is_ours(tf.distribute.get_strategy()):
        return original(value)
    here = runs.current()
    if here is None or here[0].is_alone:
        return value
    return note_scaled(by_weight(value, *here))


def unscale(original: Callable[..., tf.Tensor], value: tf.Tensor) -> tf.Tensor:
    """Do what Keras's ``unscale_loss_for_distribution`` is for, exactly."""
    if not runs.is_ours(tf.distribute.get_strategy()):
        return original(value)
    here = runs.current()
    if here is None or here[0].is_alone:
        return value
    run, replica = here
    weight = tf.cast(run.weight(replica), value.dtype)
    return note_mean(tf.math.divide_no_nan(value, weight))


def additional(original: Callable[..., tf.Tensor], model: Any, loss: tf.Tensor) -> tf.Tensor:
    """Return a loss that layers add, or a weight penalty, as a part of the batch's.

    A penalty is the same in every replica and counts once, because the weights add up to 1;
    what layers add in ``call`` is a sum if it shows that it is one, else a mean over samples.
    """
    here = runs.current()
    if here is None or here[0].is_alone:
        return original(model, loss)
    value = ops.sum(loss)
    return note_scaled(value if is_added_sum(model, loss) else by_weight(value, *here))


def is_added_sum(layer: keras.Layer, loss: tf.Tensor) -> bool:
    """Return whether a term of ``layer.losses`` was added in ``call``, as a sum over samples."""
    own = {id(term) for part in _tf_private.all_layers(layer) for term in part._losses}
    return id(loss) in own and is_sum(loss)
