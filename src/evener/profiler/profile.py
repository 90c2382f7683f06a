"""Profile of a step on the devices of this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener.devices import UsedDevice
from evener.devices.names import tf_device
from evener.engine.trace.step import TracedStep
from evener.profile import ClusterDevice, CostProfile, LayerTimes, ModelCosts
from evener.profiler.cores import cores_of_each, held_to
from evener.profiler.costs import layer_costs
from evener.profiler.device_speed import (
    make_cluster,
    measure_device,
    measure_links,
    speed_from_json,
)
from evener.profiler.known import KnownTimes
from evener.profiler.measure import Progress, measure_step
from evener.profiler.split import split_step
from evener.profiler.workspace import with_workspace

_NUM_POINTS = 5


def profile_step(
    traced: TracedStep,
    devices: Sequence[UsedDevice],
    batch_size: int,
    *,
    name: str = "",
    progress: Progress | None = None,
    known: Callable[[str], KnownTimes] = lambda _: KnownTimes(),
) -> tuple[CostProfile, tuple[str, ...]]:
    """Measure the costs of a step on devices.

    Devices of the same hardware are measured once. Only one layer at a time is in memory.

    Args:
        traced: Step, traced with layers.
        devices: Devices.
        batch_size: Most samples that a device may get, at least 1.
        name: Name of the model, for tables.
        progress: Callback before every layer; see `measure_step`.
        known: Function from a device name to the earlier measurements of that device.

    Returns:
        The profile, and the reasons why layers could not be measured.
    """
    types = [hardware_of(device.name) for device in devices]
    sizes = batch_sizes(batch_size)
    model = layer_costs(traced, name=name)
    times: dict[str, tuple[LayerTimes, ...]] = {}
    overhead, not_measured = 0.0, dict[str, None]()
    for device, type_name in zip(devices, types, strict=True):
        if type_name not in times:
            split = split_step(traced, device=device.name)
            is_cpu = device.kind == "cpu"
            with held_to(cores_of_each(devices)) if is_cpu else contextlib.nullcontext():
                before = known(device.name)
                speed = before.other(
                    "speed float32",
                    functools.partial(measure_device, device.name, dtypes=("float32",)),
                    to_json=dataclasses.asdict,
                    from_json=speed_from_json,
                )
                found = measure_step(
                    split,
                    device.name,
                    sizes,
                    progress=progress,
                    speed=speed,
                    whole_at=_most_at_once(model, sizes, device),
                    before=before,
                )
            times[type_name] = tuple(
                # An addition reads two tensors and writes one.
                dataclasses.replace(
                    layer_times,
                    accumulate_seconds=3 * layer.gradient_bytes / speed.bytes_per_second,
                )
                for layer_times, layer in zip(found.layers, model.layers, strict=True)
            )
            overhead = max(overhead, found.overhead_seconds)
            not_measured.update(dict.fromkeys(found.not_measured))
    cluster = make_cluster(
        [
            ClusterDevice(name=device.name, type=type_name, memory_bytes=device.memory_bytes)
            for device, type_name in zip(devices, types, strict=True)
        ],
        measure_links([device.name for device in devices]),
    )
    profile = CostProfile(
        model=dataclasses.replace(
            model,
            layers=tuple(
                with_workspace(layer, [of_type[index].workspace for of_type in times.values()])
                for index, layer in enumerate(model.layers)
            ),
        ),
        cluster=cluster,
        times=times,
        step_overhead_seconds=overhead,
    )
    return profile, tuple(not_measured)


def _most_at_once(model: ModelCosts, sizes: Sequence[int], device: UsedDevice) -> int | None:
    """Return the most samples for which all layers fit into half of a device's memory."""
    memory = device.memory_bytes
    if memory is None and device.kind == "cpu":
        memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if memory is None:
        return None
    fixed = 2 * model.weight_bytes + sum(layer.state_bytes for layer in model.layers)
    per_sample = model.input_bytes + sum(
        2 * layer.activation_bytes + layer.workspace_bytes for layer in model.layers
    )
    fitting = [size for size in sizes if fixed + per_sample * size <= memory / 2]
    return max(fitting, default=None)


def batch_sizes(most: int) -> list[int]:
    """Return the numbers of samples to measure layers at, up to ``most``.

    >>> batch_sizes(256), batch_sizes(3)
    ([1, 4, 16, 64, 256], [1, 2, 3])
    """
    ratio = max(2.0, most ** (1 / (_NUM_POINTS - 1)))
    sizes = {min(most, round(ratio**k)) for k in range(_NUM_POINTS)}
    return sorted({*sizes, most})


def hardware_of(device: str) -> str:
    """Return the hardware name of a device, such as ``"NVIDIA A100"``."""
    index = int(device.rpartition(":")[2])
    if device.startswith("gpu"):
        physical = tf.config.list_physical_devices("GPU")
        details: Any = (
            tf.config.experimental.get_device_details(physical[index])
            if index < len(physical)
            else {}
        )
        return str(details.get("device_name", tf_device(device)))
    configured = tf.config.threading.get_intra_op_parallelism_threads()
    return f"cpu, {configured or os.environ.get('TF_NUM_INTRAOP_THREADS', 'all')} threads"
