"""`evener.distribute`: a step that is written for one device, on all devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from evener.engine.pipeline.layout import Layout
from evener.errors import EngineError
from evener.plan import BatchNormName, Plan
from evener.strategy.across_workers import shares_of_workers
from evener.strategy.arguments import FOUND
from evener.strategy.distributed_step import DistributedStep
from evener.strategy.plans import chosen_plan
from evener.strategy.share_controller import ShareController
from evener.strategy.step_settings import StepSettings
from evener.workers.process import group_of_process

P = ParamSpec("P")
R = TypeVar("R")


@overload
def distribute(
    step: Callable[P, R],
    *,
    plan: Plan | None = None,
    devices: str | Sequence[str] | None = None,
    shares: str | Sequence[float] | None = None,
    in_axes: Any = FOUND,
    batch_norm: BatchNormName | None = None,
    verify: bool | None = None,
) -> DistributedStep[P, R]: ...


@overload
def distribute(
    step: None = None,
    *,
    plan: Plan | None = None,
    devices: str | Sequence[str] | None = None,
    shares: str | Sequence[float] | None = None,
    in_axes: Any = FOUND,
    batch_norm: BatchNormName | None = None,
    verify: bool | None = None,
) -> Callable[[Callable[P, R]], DistributedStep[P, R]]: ...


def distribute(
    step: Callable[..., Any] | None = None,
    *,
    plan: Plan | None = None,
    devices: str | Sequence[str] | None = None,
    shares: str | Sequence[float] | None = None,
    in_axes: Any = FOUND,
    batch_norm: BatchNormName | None = None,
    verify: bool | None = None,
) -> Any:
    """Run a step on all devices, with the results that one device gives.

    The step is traced once, as it is, on the global batch. Its graph is partitioned over the
    devices along the batch: work on single samples runs on the device of the sample, sums over
    samples are partial sums that are added up, and operations that mix samples in another way are
    gathered and computed once.

    Args:
        step: Function that `tf.function` can trace, written for one device. Without it, a
            decorator is returned.
        plan: Plan with stages, micro-batches and shares. Excludes ``devices``, ``shares``
            and ``batch_norm``. The variables of the step stay on the devices where they are made.
        devices: Device spec such as ``"gpu:0,gpu:1"`` or ``"cpu:2"``, or names of devices.
            Default: ``EVENER_DEVICES``, else all usable GPUs.
        shares: Relative shares of each batch, one per device; ``"even"``; or None (default): even
            at first, within the memory of each device, then rebalanced by the measured time of
            each device in steps that train.
        in_axes: Axis of each argument that counts samples, as in ``jax.vmap``: an axis, None for
            an argument that is not part of the batch, or a nest of them. Default: axis 0 of all
            tensors whose first size is that of the largest tensor. It is a matter of speed and
            cannot change a result.
        batch_norm: ``"synchronized"`` (default) or ``"per_device"``, as in `evener.Plan`.
        verify: None (default): a few samples of the first batch are computed in parts and as a
            whole on the host, beside the run, and a difference is warned of (ENG-089). True: the
            first run of the step, for each kind of arguments, is also computed on one device, and
            the difference printed on standard error; the state of the step has to fit on that
            device three times. False: neither.

    Returns:
        `DistributedStep`, which is called as the step is, and returns tensors for the whole batch.

    Raises:
        DeviceError: DEV-001 to DEV-014, as in `evener.use_devices`, if a device does not exist or
            cannot be configured any more.
        PlanError: PLAN-007 to PLAN-011, PLAN-020 or PLAN-050 for wrong shares, PLAN-035 for an
            unknown ``batch_norm``, PLAN-051 for other arguments beside a plan, PLAN-029 if devices
            of the plan are missing.
        EngineError: ENG-099 if the step is no function, such as a device spec.

    Example:
        >>> import evener, tensorflow as tf
        >>> weight = tf.Variable(2.0)
        >>> @evener.distribute(devices=["cpu:0", "cpu:1"], shares=[3, 1])
        ... def step(x):
        ...     loss = tf.sqrt(tf.reduce_mean(tf.square(weight * x)))
        ...     weight.assign_sub(0.5 * loss)
        ...     return loss
        >>> float(step(tf.constant([1.0, 1.0, 1.0, 5.0])))
        5.291...
    """
    if step is None:
        return functools.partial(
            distribute,
            plan=plan,
            devices=devices,
            shares=shares,
            in_axes=in_axes,
            batch_norm=batch_norm,
            verify=verify,
        )
    if not callable(step):
        raise _no_function(step)
    group = group_of_process()
    is_measured = plan is None and shares is None
    plan = chosen_plan(plan, devices=devices, shares=shares, batch_norm=batch_norm, group=group)
    layout, controller = Layout.of(plan, group), None
    if group is not None:
        controller = shares_of_workers(group, layout, plan.shares, measured=is_measured)
    elif is_measured and len(plan.devices) > 1:
        memory_bytes = [device.memory_bytes for device in plan.devices]
        controller = ShareController(
            plan.device_names, plan.shares, measured=True, memory_bytes=memory_bytes
        )
    settings = StepSettings(layout=layout, controller=controller, verify=verify)
    return DistributedStep(step, settings, shares=plan.shares, in_axes=in_axes)


def _no_function(step: object) -> EngineError:
    keyword = "plan" if isinstance(step, Plan) else "devices"
    return EngineError(
        "ENG-099",
        f"{step!r} is not a function.",
        why="The first argument of evener.distribute is the step; devices and plans are keyword "
        "arguments.",
        fix=f"Write @evener.distribute({keyword}=...) above the step, or "
        f"evener.distribute(step, {keyword}=...).",
    )
