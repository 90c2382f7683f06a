"""Profile of a step on the devices of this machine: each kind of device is measured once.

The training step of a Keras model is traced from the shapes of its data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import platform
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from evener._tf_private.models import build_from_specs, model_strategy
from evener._tf_private.random_numbers import is_deterministic
from evener._tf_private.tensors import unallocated_variables
from evener.devices import UsedDevice
from evener.devices.machine import Nvml, read_host
from evener.devices.names import kind_of, tf_device
from evener.errors import ProfileError
from evener.graph.draws import StreamState
from evener.graph.trace import TracedStep, trace_step
from evener.plan import Plan
from evener.plan.profile import ClusterDevice, CostProfile, LayerTimes, ModelCosts
from evener.plan.profile_files import (
    DeviceIdentity,
    KnownTimes,
    MeasurementCache,
    ReusedLayers,
    warn_of_estimates,
)
from evener.profiler.device_speed import DeviceSpeed, make_cluster, measure_device, measure_links
from evener.profiler.layer_costs import layer_costs
from evener.profiler.layers import split_step
from evener.profiler.measure import measure_step, with_workspace
from evener.strategy.arguments import Arguments
from evener.strategy.distribute import DistributedStep
from evener.strategy.one_replica import Extended
from evener.strategy.plans import used_devices
from evener.strategy.prepared import PreparedStep
from evener.strategy.strategy import Strategy

_THREADS = Path("/proc/self/task")


def cores_of_each(devices: Sequence[UsedDevice]) -> list[int]:
    """Return as many cores of this thread as each CPU device has for itself.

    Stand-ins share the threads of the process: one that computes alone uses all cores, and would
    be measured faster than in a step in which all of them compute.
    """
    every = sorted(affinity())
    num_devices = sum(not kind_of(device.name).has_own_processor for device in devices)
    return every[: max(1, len(every) // max(1, num_devices))]


@contextlib.contextmanager
def held_to(cores: Collection[int]) -> Iterator[None]:
    """Pin all threads of this process to some cores, and restore their affinity afterwards."""

    def pin(thread: int, to: Collection[int]) -> None:
        # A thread may have ended meanwhile.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, to)

    def threads() -> list[int]:
        return [int(path.name) for path in _THREADS.iterdir()] if _THREADS.exists() else []

    before = {thread: affinity(thread) for thread in threads()} if cores else {}
    for thread in before:
        pin(thread, cores)
    try:
        yield
    finally:
        # A thread started meanwhile gets the cores of the main thread.
        for thread in threads() if before else ():
            pin(thread, before.get(thread, before[os.getpid()]))


def affinity(thread: int = 0) -> set[int]:
    """Return the cores of a thread, by default the current one; empty if it has ended."""
    with contextlib.suppress(AttributeError, ProcessLookupError):
        return os.sched_getaffinity(thread)
    return set()


def profile_step(
    traced: TracedStep,
    devices: Sequence[UsedDevice],
    batch_size: int,
    *,
    name: str = "",
    known: Callable[[str], KnownTimes] = lambda _: KnownTimes(),
) -> tuple[CostProfile, tuple[str, ...]]:
    """Measure the costs of a step on devices."""
    types = [hardware_of(device.name) for device in devices]
    sizes = batch_sizes(batch_size)
    model = layer_costs(traced, name=name)
    times: dict[str, tuple[LayerTimes, ...]] = {}
    overhead, not_measured = 0.0, dict[str, None]()
    for device, type_name in zip(devices, types, strict=True):
        if type_name not in times:
            split = split_step(traced, device=device.name)
            has_cores = not kind_of(device.name).has_own_processor
            with held_to(cores_of_each(devices)) if has_cores else contextlib.nullcontext():
                before = known(device.name)
                speed = before.other(
                    "speed float32",
                    functools.partial(measure_device, device.name, dtypes=("float32",)),
                    DeviceSpeed,
                )
                found = measure_step(
                    split,
                    device.name,
                    sizes,
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
    if memory is None and not kind_of(device.name).has_own_memory:
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
    num_points = 5
    ratio = max(2.0, most ** (1 / (num_points - 1)))
    sizes = {min(most, round(ratio**k)) for k in range(num_points)}
    return sorted({*sizes, most})


def hardware_of(device: str) -> str:
    index = int(device.rpartition(":")[2])
    if kind_of(device).has_own_processor:
        physical = tf.config.list_physical_devices("GPU")
        details: Any = (
            tf.config.experimental.get_device_details(physical[index])
            if index < len(physical)
            else {}
        )
        return str(details.get("device_name", tf_device(device)))
    configured = tf.config.threading.get_intra_op_parallelism_threads()
    return f"cpu, {configured or os.environ.get('TF_NUM_INTRAOP_THREADS', 'all')} threads"


_ENVIRONMENT = ("NVIDIA_TF32_OVERRIDE", "TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "XLA_FLAGS")
"""Environment variables that select kernels."""


class KnownDevices:
    """Earlier measurements on the devices of this machine; an argument of `profile_step`."""

    def __init__(self, cache: MeasurementCache) -> None:
        self._cache = cache
        self._num_cores = len(affinity())
        self._known: list[KnownTimes] = []

    def __call__(self, device: str) -> KnownTimes:
        now = len(affinity())
        held_to = now if now < self._num_cores else 0
        self._known.append(KnownTimes(self._cache, identity_of(device, held_to=held_to)))
        return self._known[-1]

    @property
    def reused(self) -> tuple[ReusedLayers, ...]:
        return tuple(times.reused for times in self._known)


def identity_of(
    device: str, environ: Mapping[str, str] = os.environ, *, held_to: int = 0
) -> DeviceIdentity:
    """Return the identity of a device in use, as it is now: everything that decides its speed."""
    host = read_host()
    has_processor = kind_of(device).has_own_processor
    threads = int(tf.config.threading.get_intra_op_parallelism_threads())
    settings = {name: environ.get(name, "") for name in _ENVIRONMENT}
    settings["cores"] = str(held_to or "")
    settings["jit"] = str(tf.config.optimizer.get_jit() or "")
    settings["deterministic"] = "yes" if is_deterministic() else ""
    settings["tf32"] = "" if tf.config.experimental.tensor_float_32_execution_enabled() else "no"
    return DeviceIdentity(
        hardware=hardware_of(device) if has_processor else host.name,
        machine=platform.node(),
        driver=(Nvml().read_machine().driver_version or "") if has_processor else "",
        tensorflow=tf.__version__,
        num_threads=0 if has_processor else num_threads(threads, host.num_cores, environ),
        settings=", ".join(f"{name}={value}" for name, value in sorted(settings.items()) if value),
    )


def num_threads(configured: int, num_cores: int, environ: Mapping[str, str]) -> int:
    text = environ.get("TF_NUM_INTRAOP_THREADS", "")
    return configured or (int(text) if text.isdecimal() else 0) or num_cores


OnStep = Callable[[TracedStep, int | None], object]
"""Callback with the first traced training step, and the samples of its batch or None."""


class CostingStep(DistributedStep[Any, Any]):
    """Step of a `CostingStrategy`; all steps but the first training step run as usual."""

    on_step: OnStep
    datasets: list[Any]

    def _trace(
        self,
        arguments: Arguments,
        specs: Sequence[tf.TensorSpec],
        num_samples: int | None,
        streams: StreamState,
        *,
        first_draw: int | None = None,
    ) -> PreparedStep:
        def flat(*tensors: Any) -> Any:
            args, kwargs = arguments.pack(tensors)
            with streams.tracing(counts=False):
                return self._converted(*args, **kwargs)

        traced = trace_step(
            flat,
            specs,
            arguments.axes,
            autograph=True,
            unknown=arguments.unknown,
            num_samples=num_samples,
            with_layers=True,
        )
        if traced.trains:
            with tf.init_scope():
                known = num_samples or arguments.num_samples
                self.on_step(traced, known or _samples_of_first_batch(self.datasets, specs))
        return super()._trace(arguments, specs, num_samples, streams, first_draw=first_draw)


class CostingExtended(Extended):
    """Extended strategy that updates variables without setting the device of their owner.

    All owners are the host here. With its device in the trace, the arithmetic of an update would
    belong to the host instead of the layer.
    """

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        result = fn(var, *args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)


def costing_strategy(device: str, on_step: OnStep) -> Strategy:
    """Return a strategy with all variables on the host, which reports the first step."""
    datasets: list[Any] = []
    step = type(
        "CostingStep", (CostingStep,), {"on_step": staticmethod(on_step), "datasets": datasets}
    )

    class CostingStrategy(Strategy):
        _step_type = step
        _extended_type = CostingExtended

        def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
            datasets.append(dataset)
            return super().experimental_distribute_dataset(dataset, options)

    # Two micro-batches, because a step on one device without micro-batches is not traced.
    return CostingStrategy(Plan.data_parallel([device], num_micro_batches=2, owners="central"))


def _samples_of_first_batch(datasets: Sequence[Any], specs: Sequence[tf.TensorSpec]) -> int | None:
    """Return the samples of the first batch of a step; None if they are uncertain.

    The specs of data whose last batch is smaller have no batch size, so a batch is taken from the
    data. The size is uncertain if tensors of the step have another source too, or if several data
    sets match that begin with batches of different sizes.
    """
    found: set[int | None] = set()
    for dataset in datasets:
        parts = tf.nest.flatten(dataset.element_spec, expand_composites=True)
        if len(parts) == len(specs) and all(
            part.dtype == spec.dtype and part.shape.is_compatible_with(spec.shape)
            for part, spec in zip(parts, specs, strict=True)
        ):
            for batch in dataset.take(1):
                tensors = tf.nest.flatten(batch, expand_composites=True)
                found.update(tensor.shape[0] if tensor.shape.rank else None for tensor in tensors)
    return found.pop() if len(found) == 1 else None


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
        >>> from evener.profiler.profile import trace_keras_step
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
