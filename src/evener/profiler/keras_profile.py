"""Profile of a Keras model on the devices of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from evener._tf_private.models import model_strategy
from evener.errors import ProfileError
from evener.profile import CostProfile
from evener.profile.cache import MeasurementCache
from evener.profiler.identity import KnownDevices
from evener.profiler.keras_data import input_specs, target_specs
from evener.profiler.keras_step import made_model, trace_keras_step
from evener.profiler.known import warn_of_estimates
from evener.profiler.profile import profile_step
from evener.strategy.plans import used_devices


def profile_model(
    model: keras.Model | Callable[[], keras.Model],
    batch_size: int,
    *,
    devices: str | Sequence[str] | None = None,
    x_spec: Any = None,
    y_spec: Any = None,
    remeasure: bool = False,
) -> CostProfile:
    """Measure the training step of a model, layer by layer; the arguments are `make_plan`'s.

    Args:
        model: Compiled model, or a function that makes and compiles it.
        batch_size: Most samples that a device may get, above 0.
        devices: Device spec, or names of devices; None for ``EVENER_DEVICES``, else all.
        x_spec: Spec of the input of one sample; None for the model's inputs.
        y_spec: Spec of the target of one sample; None for the targets of the losses.
        remeasure: Whether to measure layers again that were measured before.

    Raises:
        ProfileError: PROF-010 if it is not compiled, PROF-060 if it is not built and there is no
            ``x_spec``, PROF-061 if it belongs to a strategy.
        DeviceError: If the devices cannot be used.
    """
    used = used_devices(devices)
    with made_model(model) as made:
        _check(made)
        inputs = input_specs(made) if x_spec is None else x_spec
        if inputs is None:
            raise _not_built(made)
        targets = target_specs(made) if y_spec is None else y_spec
        traced = trace_keras_step(made, inputs, targets)
    known = KnownDevices(MeasurementCache(refresh=remeasure))
    profile, not_measured = profile_step(traced, used, batch_size, name=made.name, known=known)
    warn_of_estimates(not_measured)
    return profile


def _check(model: Any) -> None:
    """Refuse a model that belongs to a strategy."""
    if model_strategy(model) is not None:
        raise ProfileError(
            "PROF-061",
            f"The model {model.name!r} belongs to a strategy.",
            why="Its variables already have owners, but a plan chooses the owners.",
            fix="Make the model outside of strategy.scope(), or give a function that makes it; "
            "then make it again in the scope of evener.Strategy(planned.plan).",
        )


def _not_built(model: Any) -> ProfileError:
    return ProfileError(
        "PROF-060",
        f"The model {model.name!r} is not built.",
        why="The costs of its layers depend on the shape of its input.",
        fix="Begin the model with keras.Input(shape), or pass x_spec and y_spec, the shapes of one "
        "sample, such as tf.TensorSpec([224, 224, 3]).",
    )
