"""Calls of a script that name devices.

On a machine without GPUs, CPU stand-ins appear as GPUs::

    script                          TensorFlow
    list_physical_devices("GPU")    GPU:0, GPU:1       no GPU; cpu:0, cpu:1 are the stand-ins
    tf.device("/GPU:1")         ->  "/device:CPU:1"

    physical    GPU:0        GPU:1                      as tf.config.list_physical_devices
    logical     GPU:0  GPU:1                            GPU:0 split into two, GPU:1 hidden
    stand-in    cpu:0  cpu:0

This is done only where TensorFlow finds no GPU, and only in the commands that run a program. Calls
from evener, TensorFlow and Keras are not changed: Keras selects cuDNN kernels by them. Settings of
devices and threads that come too late, because TensorFlow has started, are skipped with a note.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from evener._tf_private.patches import Patch, wrap_with
from evener._tf_private.tensors import LOCAL_DEVICES
from evener.base.libraries import check_backend
from evener.devices import resolve_devices
from evener.devices.machine import lowest_capability, runtime_initialised
from evener.errors import DeviceError
from evener.run.replace import attribute, public_targets, replace_with
from evener.run.script import Notes, UserLine, callers, user_line
from evener.strategy.placed_graph import ASKED

Report = Callable[[str, UserLine | None], None]
"""Reports something about a line of the script."""


class EmulatedGpus:
    """The emulated GPUs of a run: which are hidden or split, and what TensorFlow answers."""

    def __init__(
        self, names: Sequence[str] | None, report: Report, *, are_trained_on: bool = False
    ) -> None:
        self._started_with = names
        self._report = report
        self._are_trained_on = are_trained_on
        self._grows: dict[int, bool] = {}
        self._is_reported = False
        # TensorFlow's own functions, before they are replaced.
        self._list_physical_devices = tf.config.list_physical_devices
        self._logical_configuration = tf.config.get_logical_device_configuration
        self._hidden = frozenset[int]()
        self.splits: dict[int, list[Any]] = {}

    @functools.cached_property
    def are_not_needed(self) -> bool:
        is_cpu = [name.startswith("cpu:") for name in self._started_with or ()]
        return bool(self._list_physical_devices("GPU")) or not all(is_cpu)

    @property
    def all(self) -> Sequence[str]:
        if self._started_with is not None:
            return self._started_with
        logical = self._logical_configuration(self._list_physical_devices("CPU")[0])
        return [f"cpu:{index}" for index in range(len(logical or (None,)))]

    @property
    def names(self) -> list[str]:
        return [
            name
            for index, name in enumerate(self.all)
            if index not in self._hidden
            for _ in self.splits.get(index) or (None,)
        ]

    def gpus(self, which: str) -> list[Any]:
        """Return the physical, visible or logical GPUs that TensorFlow lists."""
        if which == "logical":
            count = range(len(self.names))
            return [tf.config.LogicalDevice(f"/device:GPU:{k}", "GPU") for k in count]
        shown = [k for k in range(len(self.all)) if which == "physical" or k not in self._hidden]
        return [tf.config.PhysicalDevice(f"/physical_device:GPU:{k}", "GPU") for k in shown]

    def index_of(self, device: Any) -> int:
        physical = self.gpus("physical")
        if device not in physical:
            raise ValueError(f"Unrecognized device: {device!r}")
        return physical.index(device)

    def check_not_started(self, what: str) -> None:
        """Raise as TensorFlow does once it has started, unless evener has started it."""
        if self._started_with is None and runtime_initialised(tf):
            raise RuntimeError(f"{what} cannot be modified after being initialized")

    def substitute(self, asked: Any) -> Any:
        """Return a device, a list or a device function with GPUs replaced by their stand-ins.

        Any other value is returned unchanged, for TensorFlow to handle.
        """
        name = asked.name if isinstance(asked, tf.config.LogicalDevice) else asked
        if isinstance(name, list | tuple):
            # Two names of the same stand-in are one device.
            return list(dict.fromkeys(map(self.substitute, name)))
        if callable(name):
            return lambda operation: self.substitute(name(operation))
        number = self.asked(name)
        if number is None:
            return asked
        self.report_once()
        spec: Any = tf.DeviceSpec.from_string(str(_text(name)))
        cpu = int(self.names[number].partition(":")[2])
        return spec.replace(device_type="CPU", device_index=cpu).to_string()

    def asked(self, device: Any) -> int | None:
        """Return the number of the GPU that a device names if it has a stand-in, or None."""
        name = device.name if isinstance(device, tf.config.LogicalDevice) else device
        text = _text(name)
        # Most names are those of CPUs, and parsing them is slower than this check.
        if text is None or "GPU" not in text.upper():
            return None
        try:
            spec = tf.DeviceSpec.from_string(text)
        except ValueError:
            return None
        if spec.device_type != "GPU" or spec.job not in (None, "localhost"):
            return None
        number = spec.device_index or 0
        return None if self.are_not_needed or number >= len(self.names) else number

    @property
    def capability(self) -> tuple[int, int] | None:
        build = tf.sysconfig.get_build_info()
        return lowest_capability(build.get("cuda_compute_capabilities", ()))

    def report_once(self) -> None:
        if self._is_reported:
            return
        self._is_reported = True
        gpus = [f"GPU:{index}" for index in range(len(self.all))]
        appear = "appear" if len(gpus) > 1 else "appears"
        self._report(
            f"no GPU was found: {joined(self.all)} {appear} as {joined(gpus)}; "
            "--no-gpu-names turns this off",
            user_line(),
        )

    # Replacements of functions of TensorFlow.

    def replace(self, original: Callable[..., Any], name: str) -> Any:
        if name in ("device", "copy_to_device", "prefetch_to_device"):
            return replace_with(self._on_stand_ins)(original)
        name = name.replace("virtual", "logical")
        if name in _LISTED:
            method: Callable[..., Any] = functools.partial(self._listed, _LISTED[name])
        elif name in _COUNTED:
            method = functools.partial(self._counted, name)
        else:
            method = getattr(self, name)

        def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            device = args[0] if args else kwargs.get("device")
            is_other = name in _OF_ONE_GPU and getattr(device, "device_type", "") != "GPU"
            if is_other or not _is_called_by_script() or self.are_not_needed:
                return original(*args, **kwargs)
            return method(original, *args, **kwargs)

        return replace_with(call)(original)

    def _on_stand_ins(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        named = {key: self.substitute(value) for key, value in kwargs.items()}
        scope = original(*map(self.substitute, args), **named)
        number = self.asked(next(iter([*args, *kwargs.values()]), None))
        if number is None or self._are_trained_on or tf.executing_eagerly():
            return scope
        return _with_requested_gpu(scope, f"gpu:{number}")

    def pin(self, original: Callable[..., Any], device: Any) -> Any:
        return original(self.substitute(device))

    def init_strategy(
        self, original: Callable[..., None], strategy: Any, /, *args: Any, **kwargs: Any
    ) -> None:
        if self.are_not_needed:
            original(strategy, *args, **kwargs)
            return
        bound = inspect.signature(original).bind(strategy, *args, **kwargs)
        given = bound.arguments
        for name in _ALL_GPUS_BY_DEFAULT.intersection(inspect.signature(original).parameters):
            # If the script has hidden them, TensorFlow uses the CPU.
            if given.get(name) is None:
                given[name] = self.gpus("logical") or None
        for name in _DEVICE_ARGUMENTS.intersection(given):
            given[name] = self.substitute(given[name])
        original(*bound.args, **bound.kwargs)

    def list_local_devices(
        self, original: Callable[..., list[Any]], *args: Any, **kwargs: Any
    ) -> list[Any]:
        devices = original(*args, **kwargs)
        if not _is_called_by_script() or self.are_not_needed:
            return devices
        self.report_once()
        for index, name in enumerate(self.names):
            gpu = type(devices[0])()
            gpu.CopyFrom(devices[0])
            gpu.name, gpu.device_type = f"/device:GPU:{index}", "GPU"
            gpu.physical_device_desc = f"device: {index}, name: stand-in {name}"
            devices.append(gpu)
        return devices

    def _listed(self, which: str, original: Any, device_type: str | None = None) -> list[Any]:
        if device_type not in (None, "GPU"):
            return original(device_type)
        self.report_once()
        # Called for GPUs too, as that may start the runtime.
        return [*original(device_type), *self.gpus(which)]

    def set_visible_devices(
        self, original: Any, devices: Any, device_type: str | None = None
    ) -> None:
        given = devices if isinstance(devices, list) else [devices]
        others = [device for device in given if device.device_type != "GPU"]
        if device_type not in (None, "GPU") or (device_type == "GPU" and others):
            original(devices, device_type)
            return
        self.report_once()
        shown = sorted({self.index_of(gpu) for gpu in given if gpu.device_type == "GPU"})
        hidden = frozenset(range(len(self.all))).difference(shown)
        if hidden != self._hidden:
            self.check_not_started("Visible devices")
        self._hidden = hidden
        if device_type is None:
            original(others)
        if self._are_trained_on and hidden:
            names = [f"GPU:{index}" for index in shown]
            self._report(
                f"set_visible_devices: tf.config lists {joined(names) or 'no GPU'} from here "
                f"on, but evener still trains on {', '.join(self.all)}; use --devices "
                "to select devices",
                user_line(),
            )

    def get_memory_growth(self, _: Any, device: Any) -> bool | None:
        return self._grows.get(self.index_of(device))

    def set_memory_growth(self, _: Any, device: Any, enable: bool) -> None:
        index = self.index_of(device)
        if self._grows.get(index) != enable:
            self.check_not_started("Physical devices")
        self._grows[index] = enable

    def get_logical_device_configuration(self, _: Any, device: Any) -> list[Any] | None:
        return self.splits.get(self.index_of(device))

    def set_logical_device_configuration(self, _: Any, device: Any, logical_devices: Any) -> None:
        index = self.index_of(device)
        self.check_not_started("Virtual devices")
        # Each of them is the whole stand-in.
        self.splits[index] = list(logical_devices)
        parts = f"its {len(logical_devices)} logical devices run on {self.all[index]}, and "
        self._report(
            f"set_logical_device_configuration of GPU:{index}: "
            f"{parts if len(logical_devices) > 1 else ''}memory_limit has no effect",
            user_line(),
        )

    def get_device_details(self, _: Any, device: Any) -> dict[str, Any]:
        name, capability = f"stand-in {self.all[self.index_of(device)]}", self.capability
        known = {} if capability is None else {"compute_capability": capability}
        return {"device_name": name, **known}

    def _counted(self, what: str, original: Any, device: Any) -> Any:
        """Return what TensorFlow counts, which is nothing on processors without oneDNN."""
        name = self.substitute(device)
        try:
            return original(name)
        except ValueError:
            if name == device:
                raise
            nothing = {"get_memory_info": {"current": 0, "peak": 0}, "get_memory_usage": 0}
            return nothing.get(what)

    def is_gpu_available(
        self, original: Any, cuda_only: bool = False, min_cuda_compute_capability: Any = None
    ) -> bool:
        self.report_once()
        wanted = tuple(min_cuda_compute_capability or (0, 0))
        return bool(self.names) and (self.capability or (0, 0)) >= wanted

    def gpu_device_name(self, original: Any) -> str:
        self.report_once()
        return "/device:GPU:0" if self.names else ""


def _text(name: Any) -> str | None:
    text = name.to_string() if hasattr(name, "to_string") else name
    return text if isinstance(text, str) else None


def joined(names: Sequence[str]) -> str:
    """Return names joined by commas and "and".

    >>> joined(["a", "b", "c"]), joined(["a"]), joined([])
    ('a, b and c', 'a', '')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


_LISTED = {
    "list_physical_devices": "physical",
    "list_logical_devices": "logical",
    "get_visible_devices": "visible",
}
_COUNTED = ("get_memory_info", "get_memory_usage", "reset_memory_stats")
_CONFIGURATION = ("get_logical_device_configuration", "set_logical_device_configuration")
_OF_ONE_GPU = ("get_memory_growth", "set_memory_growth", "get_device_details", *_CONFIGURATION)
_EXPERIMENTAL = (*_LISTED, "set_visible_devices", *_OF_ONE_GPU, *_COUNTED)

REPLACED = (
    *("device", "test.is_gpu_available", "test.gpu_device_name"),
    *("data.experimental.copy_to_device", "data.experimental.prefetch_to_device"),
    *(f"config.{name}" for name in (*_LISTED, "set_visible_devices", *_CONFIGURATION)),
    # Some are the same, under their old names.
    *(
        f"config.experimental.{name.replace('logical_device_', 'virtual_device_')}"
        for name in _EXPERIMENTAL
    ),
)
"""The functions that are replaced in `tf`, `tf.compat.v1` and `tf.compat.v2`."""

STRATEGIES = ("MirroredStrategy", "OneDeviceStrategy", "CentralStorageStrategy")
"""The strategies of ``tf.distribute`` that take devices."""
_ALL_GPUS_BY_DEFAULT = {"devices", "compute_devices"}
_DEVICE_ARGUMENTS = {*_ALL_GPUS_BY_DEFAULT, "device", "parameter_device"}

_IMPORTED_AS = (
    *("config", "config.experimental", "test", "data", "data.experimental"),
    *("compat", "compat.v1", "compat.v2"),
)


def _each_class_once(name: str) -> Iterator[str]:
    experimental = public_targets(f"distribute.experimental.{name}", [""])
    targets = [*public_targets(f"distribute.{name}"), *experimental]
    # The first name of each.
    classes = {attribute(tf, target.partition(":")[2]): target for target in reversed(targets)}
    yield from (f"{target}.__init__" for target in classes.values())


FUNCTIONS = Patch(
    "functions that name GPUs",
    *(target for path in REPLACED for target in public_targets(path)),
    why="Programs for GPUs find and name them by these functions.",
    if_it_changes="Programs for GPUs do not run where there are none.",
)
IMPORTED = Patch(
    "modules that name GPUs",
    *(f"sys:modules[tensorflow.{name}]" for name in _IMPORTED_AS),
    why="`import tensorflow.config` would make a second module, without the replacements.",
    if_it_changes=FUNCTIONS.if_it_changes,
    is_new=True,
)
PIN = Patch(
    "evener.pin in scripts",
    "evener:pin",
    why="A GPU name selects its stand-in there too.",
    if_it_changes=FUNCTIONS.if_it_changes,
)
STRATEGY_DEVICES = Patch(
    "devices of strategies",
    *(target for name in STRATEGIES for target in _each_class_once(name)),
    why="A GPU name selects its stand-in there too, and so does the default, all GPUs.",
    if_it_changes="Strategies of TensorFlow train on one device where there is no GPU.",
)

# These select GPU kernels by the same functions.
_LIBRARIES = ("evener", "keras", "tensorflow", "tf_keras")
# Modules that stand between a program and the replacements here, those of the doctor's watcher too.
_BETWEEN = (
    *(__name__, replace_with.__module__, "tensorflow.python.autograph."),
    *("evener.doctor.watch.", "evener._tf_private.functions"),
)


def answer_as_gpus(
    stand_ins: Sequence[str] | None, report: Report, *, are_trained_on: bool = False
) -> None:
    """Let CPU devices appear as GPUs to the script, if TensorFlow finds no GPU."""
    used = EmulatedGpus(stand_ins, report, are_trained_on=are_trained_on)
    # If TensorFlow has not started, listing GPUs now would fix the devices that CUDA shows.
    if stand_ins is not None and used.are_not_needed:
        return
    FUNCTIONS.apply_by_name(used.replace)
    IMPORTED.apply_by_name(lambda _, name: attribute(tf, name.removeprefix("tensorflow.")))
    PIN.apply(replace_with(used.pin))
    LOCAL_DEVICES.apply(replace_with(used.list_local_devices))
    if not are_trained_on:
        STRATEGY_DEVICES.apply(replace_with(used.init_strategy))


def _is_called_by_script() -> bool:
    names = (str(frame.f_globals.get("__name__", "")) for frame in callers())
    caller = next((name for name in names if not name.startswith(_BETWEEN)), "evener")
    return caller.partition(".")[0] not in _LIBRARIES


@contextlib.contextmanager
def _with_requested_gpu(
    scope: contextlib.AbstractContextManager[Any], asked: str
) -> Iterator[None]:
    """Store the requested GPU on the operations of a graph, so that an audit checks GPU kernels."""

    def mark(operation: tf.Operation) -> str:
        # An inner block has set its device before.
        if tf.DeviceSpec.from_string(operation.device).device_type is None:
            setattr(operation, ASKED, asked)
        return operation.device

    with scope, tf.compat.v1.get_default_graph().device(mark):
        yield


_THREAD_CALLS = {
    "set_intra_op_parallelism_threads": "TF_NUM_INTRAOP_THREADS",
    "set_inter_op_parallelism_threads": "TF_NUM_INTEROP_THREADS",
}
_SETTINGS = Patch(
    "settings of devices and threads",
    "tensorflow:config.set_visible_devices",
    "tensorflow:config.set_logical_device_configuration",
    "tensorflow:config.experimental.set_visible_devices",
    "tensorflow:config.experimental.set_virtual_device_configuration",
    "tensorflow:config.experimental.set_memory_growth",
    *(f"tensorflow:config.threading.{name}" for name in _THREAD_CALLS),
    why="evener has started TensorFlow, which refuses these settings from then on.",
    if_it_changes="Scripts that configure devices or threads end with TensorFlow's error.",
)
_USE_DEVICES = Patch(
    "evener.use_devices in scripts",
    "evener:use_devices",
    why="The devices of a run are those of the command line.",
    if_it_changes="Scripts that choose devices end with DEV-013.",
)
# Prefixes of variables that are read when TensorFlow or Keras is imported, or TensorFlow starts.
_READ_EARLY = ("CUDA_", "EVENER_", "KERAS_", "TF_", "XLA_")
# The log does not matter for training, and a cluster is read when a strategy is created.
_READ_LATER = ("TF_CPP_", "TF_CONFIG")

_BACKEND = "KERAS_BACKEND"


def skip_late_settings(devices: Sequence[str], notes: Notes) -> None:
    """Skip calls of ``tf.config`` that come too late, with a note, instead of an error."""
    why = f"evener runs on {', '.join(devices)}; --devices chooses others"

    def skip(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        reason = why
        if name in _THREAD_CALLS:
            variable = _THREAD_CALLS[name]
            reason = f"TensorFlow has started; set {variable} in the environment instead"

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except RuntimeError:
                # By this error evener itself finds out whether TensorFlow has started.
                if str(sys._getframe(1).f_globals.get("__name__")).startswith("evener.devices"):
                    raise
                # TensorFlow raises it for every setting that is fixed once it has started.
                notes.add(f"{original.__name__} is skipped: {reason}", user_line())
                return None

        return call

    def use(original: Callable[..., Any], spec: str | None = None, **settings: Any) -> Any:
        try:
            return original(spec, **settings)
        except DeviceError as error:
            if error.code != "DEV-013":
                raise
            notes.add(f"use_devices({spec!r}) is skipped: {why}", user_line())
            return resolve_devices(devices)

    _SETTINGS.apply_by_name(skip)
    _USE_DEVICES.apply(wrap_with(use))


def watch_environment(notes: Notes | None = None) -> None:
    """End the script (RUN-004) where it chooses another backend; note variables set too late."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event != "os.putenv":
            return
        name, value = (os.fsdecode(text) for text in args)
        if name == _BACKEND:
            # An exception of an audit hook goes to the script's line.
            check_backend(value)
        if notes is None or not name.startswith(_READ_EARLY) or name.startswith(_READ_LATER):
            return
        # The event comes before the change.
        if value != os.environ.get(name) and (name, value) != (_BACKEND, "tensorflow"):
            notes.add(
                f"{name}={value} may have no effect: TensorFlow has started; set it in the "
                "environment, before evener run",
                user_line(),
            )

    # An audit hook cannot be removed, but the script runs until the end of the process.
    sys.addaudithook(hook)
