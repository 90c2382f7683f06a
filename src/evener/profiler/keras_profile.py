"""Profile of a Keras model.

The training step is traced from the shapes of its data, then measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from evener._tf_private.models import build_from_specs, model_strategy
from evener._tf_private.tensors import unallocated_variables
from evener.errors import ProfileError
from evener.graph.trace import TracedStep, trace_step
from evener.plan.profile import CostProfile
from evener.plan.profile_files import MeasurementCache, warn_of_estimates
from evener.profiler.profile import KnownDevices, profile_step
from evener.strategy.plans import used_devices


def input_specs(model: keras.Model) -> Any:
    """Return the input of a model for one sample, a nest of `tf.TensorSpec`; None if unknown."""

    def spec(tensor: Any) -> tf.TensorSpec:
        return tf.TensorSpec(tensor.shape[1:], tensor.dtype)

    given: Any = getattr(model, "inputs", None)
    if not given:
        return None
    if isinstance(model, keras.Sequential) or len(given) == 1:
        # Keras also accepts the tensor itself instead of a nest with one tensor.
        return spec(given[0])
    structure: Any = model.input
    return keras.tree.map_structure(spec, structure)


def target_specs(model: keras.Model) -> Any:
    """Return the targets of a compiled model for one sample."""
    compiled: Any = model
    outputs, loss = compiled.outputs, compiled.loss
    if loss is None or not outputs:
        return None
    if isinstance(loss, Mapping):
        losses: Sequence[Any] = [loss.get(name) for name in compiled.output_names]
    else:
        losses = loss if isinstance(loss, list | tuple) else [loss] * len(outputs)
    targets: list[tf.TensorSpec] = []
    for output, of_output in zip(outputs, losses, strict=True):
        function_name = getattr(of_output, "__name__", type(of_output).__name__)
        name = of_output if isinstance(of_output, str) else function_name
        is_sparse = "sparse" in name.lower()
        targets.append(
            tf.TensorSpec(output.shape[1:-1], tf.int32)
            if is_sparse
            else tf.TensorSpec(output.shape[1:], tf.float32)
        )
    if len(targets) == 1:
        return targets[0]
    return keras.tree.pack_sequence_as(compiled.output, targets)


def trace_keras_step(
    model: keras.Model | Callable[[], keras.Model], x_spec: Any, y_spec: Any = None
) -> TracedStep:
    """Trace the training step of a compiled model, as ``fit`` calls it on a batch.

    Example:
        >>> import keras, tensorflow as tf
        >>> from evener.profiler.layer_costs import layer_costs
        >>> from evener.profiler.keras_profile import trace_keras_step
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
        data = (x_spec,) if y_spec is None else (x_spec, y_spec)
        leaves = tf.nest.flatten(data)
        symbolic = [keras.KerasTensor([None, *spec.shape], spec.dtype.name) for spec in leaves]
        build_from_specs(made, tf.nest.pack_sequence_as(data, symbolic))

        @tf.autograph.experimental.do_not_convert
        def step(*tensors: Any) -> Any:
            return made.train_step(tf.nest.pack_sequence_as(data, tensors))

        traced = trace_step(
            step,
            [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in leaves],
            [0] * len(leaves),
            autograph=False,
            with_layers=True,
        )
        # A traced function holds weak references to its variables.
        vars(traced.concrete)["_evener_model"] = made
        return traced


@contextlib.contextmanager
def made_model(model: keras.Model | Callable[[], keras.Model]) -> Iterator[Any]:
    """Yield a model; for a function, make it without allocating memory for its variables."""
    if isinstance(model, keras.Model):
        yield model
    else:
        with unallocated_variables():
            yield model()


def profile_model(
    model: keras.Model | Callable[[], keras.Model],
    batch_size: int,
    *,
    devices: str | Sequence[str] | None = None,
    x_spec: Any = None,
    y_spec: Any = None,
    remeasure: bool = False,
) -> CostProfile:
    """Measure the training step of a model, layer by layer; the arguments are `make_plan`'s."""
    used = used_devices(devices)
    with made_model(model) as made:
        if model_strategy(made) is not None:
            raise ProfileError(
                "PROF-061",
                f"The model {made.name!r} belongs to a strategy.",
                why="Its variables already have owners, but a plan chooses the owners.",
                fix="Make the model outside of strategy.scope(), or give a function that makes it; "
                "then make it again in the scope of evener.Strategy(planned.plan).",
            )
        inputs = input_specs(made) if x_spec is None else x_spec
        if inputs is None:
            raise ProfileError(
                "PROF-060",
                f"The model {made.name!r} is not built.",
                why="The costs of its layers depend on the shape of its input.",
                fix="Begin the model with keras.Input(shape), or pass x_spec and y_spec, the "
                "shapes of one sample, such as tf.TensorSpec([224, 224, 3]).",
            )
        targets = target_specs(made) if y_spec is None else y_spec
        traced = trace_keras_step(made, inputs, targets)
    known = KnownDevices(MeasurementCache(refresh=remeasure))
    profile, not_measured = profile_step(traced, used, batch_size, name=made.name, known=known)
    warn_of_estimates(not_measured)
    return profile
