"""Function `evener.make_plan`: from a Keras model or a profile to the best plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from evener.base.libraries import check_installed
from evener.errors import ProfileError
from evener.plan.profile import CostProfile
from evener.planner.planning import BatchSize, Planned, check_batch_size, plan_profile

if TYPE_CHECKING:
    import keras

_MOST_MEASURED = 256
"""Most samples to measure layers at if the batch size is ``"max"`` or ``"auto"``."""


def make_plan(
    model: keras.Model | Callable[[], keras.Model] | CostProfile,
    batch_size: BatchSize,
    *,
    devices: str | Sequence[str] | None = None,
    x_spec: Any = None,
    y_spec: Any = None,
    remeasure: bool = False,
) -> Planned:
    """Measure the training step of a Keras model, and search for the plan with the fastest step.

    The model is not trained, and must not belong to a strategy: make another one in the scope of
    ``Strategy(planned.plan)``. Measurements of earlier runs on the same kind of device are reused.

    Args:
        model: Compiled Keras model; or a function that makes and compiles it, for a model that
            does not fit into this machine: no memory is allocated for its variables. Or a cost
            profile, such as `evener.plan.profile_files.read_profile` returns; then nothing is
            measured.
        batch_size: Samples of the global batch, at least 1; ``"max"``: the most that fit without
            micro-batches and recomputation; ``"auto"``: the fewest with nearly the highest
            throughput. For these words, layers are measured at up to 256 samples.
        devices: Device spec, or names of devices; None for ``EVENER_DEVICES``, else all.
        x_spec: Spec of the input for one sample without the batch axis: a nest of
            `tf.TensorSpec`. None for the model's inputs.
        y_spec: Spec of the target of one sample. None for the targets of the compiled losses.
        remeasure: Whether to measure layers again that were measured before.

    Returns:
        The plan (`Planned.plan`) with its prediction and the profile that it is based on.

    Raises:
        PlanError: PLAN-042 for an impossible batch size, PLAN-043 if nothing fits.
        ProfileError: PROF-010 if the model is not compiled, PROF-060 if it is not built and there
            is no ``x_spec``, PROF-061 if it belongs to a strategy, PROF-062 if devices or specs are
            given with a profile.
        DeviceError: DEV-001 to DEV-014 if the devices cannot be used, as in `use_devices`.

    Warns:
        EvenerWarning: PROF-020 if the times of layers are estimated.

    Example:
        >>> import evener
        >>> from evener.clusters import cluster_named, datasheet_profile, model_named
        >>> profile = datasheet_profile(model_named("resnet-50"), cluster_named("rtx3090-rtx3060"))
        >>> evener.make_plan(profile, 64).plan.layout
        'data parallel'
    """
    check_batch_size(batch_size)
    if isinstance(model, CostProfile):
        if not (devices is None and x_spec is None and y_spec is None):
            raise ProfileError(
                "PROF-062",
                "A profile is planned for its own devices and data.",
                why="devices, x_spec and y_spec say how a model is measured; the profile of "
                f"{model.model.name or 'a model'} is measured already.",
                fix="Leave them out, or give the model.",
            )
        return plan_profile(model, batch_size)
    # Planning for a profile does not need TensorFlow.
    check_installed()
    from evener.profiler.profile import profile_model

    most = _MOST_MEASURED if isinstance(batch_size, str) else batch_size
    profile = profile_model(
        model, most, devices=devices, x_spec=x_spec, y_spec=y_spec, remeasure=remeasure
    )
    return plan_profile(profile, batch_size)
