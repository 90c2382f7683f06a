"""Training step of a Keras model, traced from the shapes of its data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from evener._tf_private.models import build_from_specs
from evener._tf_private.variables import unallocated_variables
from evener.engine.trace.step import TracedStep, trace_step
from evener.errors import ProfileError


def trace_keras_step(
    model: keras.Model | Callable[[], keras.Model], x_spec: Any, y_spec: Any = None
) -> TracedStep:
    """Trace the training step of a compiled model, as ``fit`` calls it on a batch.

    Args:
        model: Compiled model, or a function that makes and compiles it. With a function, no memory
            is allocated for weights and optimizer state: the model need not fit into this machine,
            and cannot be run.
        x_spec: Spec of one sample without the batch axis: a `tf.TensorSpec` or a nest of them.
        y_spec: Spec of the target of one sample; None if there is no target.

    Raises:
        ProfileError: PROF-010 if the model is not compiled.

    Example:
        >>> import keras, tensorflow as tf
        >>> from evener.profiler.costs import layer_costs
        >>> from evener.profiler.keras_step import trace_keras_step
        >>> def make():
        ...     layers = [keras.layers.Dense(4, name="hidden"), keras.layers.Dense(1, name="head")]
        ...     model = keras.Sequential([keras.Input((3,)), *layers])
        ...     model.compile("adam", "mse")
        ...     return model
        >>> step = trace_keras_step(make, tf.TensorSpec([3]), tf.TensorSpec([1]))
        >>> [(a.name, a.weight_bytes, a.optimizer_bytes) for a in layer_costs(step).layers]
        [('hidden', 64, 128), ('head', 20, 40)]
    """
    with made_model(model) as made:
        if not made.compiled:
            raise ProfileError(
                "PROF-010",
                f"The model {made.name!r} is not compiled.",
                why="The costs of a training step depend on its loss and its optimizer.",
                fix="Call model.compile(optimizer, loss) first.",
            )
        return _trace(made, (x_spec,) if y_spec is None else (x_spec, y_spec))


@contextlib.contextmanager
def made_model(model: keras.Model | Callable[[], keras.Model]) -> Iterator[Any]:
    """Yield a model; for a function, make it without allocating memory for its variables.

    Args:
        model: Model, or function that makes it.
    """
    if isinstance(model, keras.Model):
        yield model
    else:
        with unallocated_variables():
            yield model()


def _trace(model: Any, data: Any) -> TracedStep:
    leaves = tf.nest.flatten(data)
    symbolic = [keras.KerasTensor([None, *spec.shape], spec.dtype.name) for spec in leaves]
    build_from_specs(model, tf.nest.pack_sequence_as(data, symbolic))

    @tf.autograph.experimental.do_not_convert
    def step(*tensors: Any) -> Any:
        return model.train_step(tf.nest.pack_sequence_as(data, tensors))

    traced = trace_step(
        step,
        [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in leaves],
        [0] * len(leaves),
        autograph=False,
        with_layers=True,
    )
    # A traced function holds weak references to its variables.
    vars(traced.concrete)["_evener_model"] = model
    return traced
