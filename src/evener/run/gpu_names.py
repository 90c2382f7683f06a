"""Programs for GPUs on machines without: CPU stand-ins appear as GPUs.

    script                          TensorFlow
    list_physical_devices("GPU")    GPU:0, GPU:1       no GPU; cpu:0, cpu:1 are the stand-ins
    tf.device("/GPU:1")         ->  "/device:CPU:1"

This is done only where TensorFlow finds no GPU, and only in the three commands that run a program.
Calls from evener, TensorFlow and Keras are not changed: Keras selects cuDNN kernels by them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from evener._tf_private.devices import LOCAL_DEVICES
from evener.auditing.device_names import ASKED
from evener.run.emulated_gpus import EmulatedGpus, Report, joined
from evener.run.gpu_functions import (
    FUNCTIONS,
    IMPORTED,
    PIN,
    STRATEGIES,
    STRATEGY_DEVICES,
    attribute,
)
from evener.run.replace import instead_of
from evener.run.user_line import callers, user_line

# These select GPU kernels by the same functions.
_LIBRARIES = ("evener", "keras", "tensorflow", "tf_keras")
_AUTOGRAPH = "tensorflow.python.autograph."


def answer_as_gpus(
    stand_ins: Sequence[str] | None, report: Report, *, are_trained_on: bool = False
) -> None:
    """Let CPU devices appear as GPUs to the script, if TensorFlow finds no GPU.

    Args:
        stand_ins: The devices on which evener has started the runtime, such as
            ``["cpu:0", "cpu:1"]``; None for the logical CPUs of a runtime that the script starts.
        report: Reports the replacement.
        are_trained_on: Whether evener trains on all of them, whichever the script selects.
    """
    used = EmulatedGpus(stand_ins, report)
    # If TensorFlow has not started, listing GPUs now would fix the devices that CUDA shows.
    if stand_ins is not None and used.are_not_needed:
        return
    replacements = _Replacements(used, report, are_trained_on=are_trained_on)
    FUNCTIONS.apply_by_name(replacements.instead_of)
    IMPORTED.apply_by_name(lambda _, name: attribute(tf, name.removeprefix("tensorflow.")))
    PIN.apply(replacements.of_pin)
    LOCAL_DEVICES.apply(replacements.of_local_devices)
    if not are_trained_on:
        for name, patch in STRATEGY_DEVICES.items():
            patch.apply(
                functools.partial(replacements.of_strategy_init, arguments=STRATEGIES[name])
            )


def _is_called_by_script() -> bool:
    for frame in callers():
        name = str(frame.f_globals.get("__name__", ""))
        if name != __name__ and not name.startswith(_AUTOGRAPH):
            return name.partition(".")[0] not in _LIBRARIES
    return False


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


class _Replacements:
    """The replacements of TensorFlow's functions.

    Methods have the names of these functions, and get them as their first argument.

    Args:
        used: The emulated GPUs.
        report: Reports choices of the script that have another effect.
        are_trained_on: Whether evener trains on all of them.
    """

    def __init__(self, used: EmulatedGpus, report: Report, *, are_trained_on: bool) -> None:
        self._used = used
        self._report = report
        self._are_trained_on = are_trained_on
        self._grows: dict[int, bool] = {}

    def instead_of(self, original: Callable[..., Any], name: str) -> Any:
        """Return the replacement of a function of TensorFlow."""
        if name in ("device", "copy_to_device", "prefetch_to_device"):
            return self._on_emulated_gpus(original)
        method: Callable[..., Any] = getattr(self, name.replace("virtual", "logical"))

        @instead_of(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            if not _is_called_by_script() or self._used.are_not_needed:
                return original(*args, **kwargs)
            return method(original, *args, **kwargs)

        return replacement

    def _on_emulated_gpus(self, original: Callable[..., Any]) -> Any:
        @instead_of(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            named = {key: self._used.substitute(value) for key, value in kwargs.items()}
            scope = original(*map(self._used.substitute, args), **named)
            asked = self._used.asked(next(iter([*args, *kwargs.values()]), None))
            if asked is None or self._are_trained_on or tf.executing_eagerly():
                return scope
            return _with_requested_gpu(scope, asked)

        return replacement

    def of_pin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of `evener.pin`: a GPU name selects its stand-in."""

        @instead_of(original)
        def pin(device: Any) -> Any:
            return original(self._used.substitute(device))

        return pin

    def of_strategy_init(self, original: Callable[..., None], arguments: tuple[str, ...]) -> Any:
        """Return an ``__init__`` that creates a strategy of TensorFlow on the stand-ins."""

        @instead_of(original)
        def __init__(strategy: Any, *args: Any, **kwargs: Any) -> None:
            if self._used.are_not_needed:
                original(strategy, *args, **kwargs)
                return
            bound = inspect.signature(original).bind(strategy, *args, **kwargs)
            given, first = bound.arguments, arguments[0]
            if first != "device" and given.get(first) is None:
                # All GPUs; if the script has hidden them, TensorFlow uses the CPU.
                given[first] = self._used.logical or None
            named = {key: self._used.substitute(given[key]) for key in arguments if key in given}
            given.update(named)
            original(*bound.args, **bound.kwargs)

        return __init__

    def of_local_devices(self, original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """Return the replacement of ``device_lib.list_local_devices``."""

        @instead_of(original)
        def list_local_devices(*args: Any, **kwargs: Any) -> list[Any]:
            found = original(*args, **kwargs)
            if not _is_called_by_script() or self._used.are_not_needed:
                return found
            self._used.report_once()
            for index, name in enumerate(self._used.names):
                gpu = type(found[0])()
                gpu.CopyFrom(found[0])
                gpu.name, gpu.device_type = f"/device:GPU:{index}", "GPU"
                gpu.physical_device_desc = f"device: {index}, name: stand-in {name}"
                found.append(gpu)
            return found

        return list_local_devices

    def list_physical_devices(self, original: Any, device_type: str | None = None) -> list[Any]:
        return self._listed(original, device_type, self._used.physical)

    def list_logical_devices(self, original: Any, device_type: str | None = None) -> list[Any]:
        return self._listed(original, device_type, self._used.logical)

    def get_visible_devices(self, original: Any, device_type: str | None = None) -> list[Any]:
        return self._listed(original, device_type, self._used.visible)

    def _listed(self, original: Any, device_type: str | None, gpus: list[Any]) -> list[Any]:
        if device_type not in (None, "GPU"):
            return original(device_type)
        self._used.report_once()
        # Called for GPUs too, as that may start the runtime.
        return [*original(device_type), *gpus]

    def set_visible_devices(
        self, original: Any, devices: Any, device_type: str | None = None
    ) -> None:
        given = devices if isinstance(devices, list) else [devices]
        others = [device for device in given if device.device_type != "GPU"]
        if device_type not in (None, "GPU") or (device_type == "GPU" and others):
            original(devices, device_type)
            return
        self._used.report_once()
        names = self._used.show([device for device in given if device.device_type == "GPU"])
        if device_type is None:
            original(others)
        if self._are_trained_on and len(names) < len(self._used.all):
            self._report(
                f"set_visible_devices: tf.config lists {joined(names) or 'no GPU'} from here "
                f"on, but evener still trains on {', '.join(self._used.all)}; use --devices "
                "to select devices",
                user_line(),
            )

    def get_memory_growth(self, original: Any, device: Any) -> bool | None:
        if device.device_type != "GPU":
            return original(device)
        return self._grows.get(self._used.index_of(device))

    def set_memory_growth(self, original: Any, device: Any, enable: bool) -> None:
        if device.device_type != "GPU":
            original(device, enable)
            return
        index = self._used.index_of(device)
        if self._grows.get(index) != enable:
            self._used.check_not_started("Physical devices")
        self._grows[index] = enable

    def get_logical_device_configuration(self, original: Any, device: Any) -> list[Any] | None:
        if device.device_type != "GPU":
            return original(device)
        return self._used.configuration_of(self._used.index_of(device))

    def set_logical_device_configuration(
        self, original: Any, device: Any, logical_devices: Any
    ) -> None:
        if device.device_type != "GPU":
            original(device, logical_devices)
            return
        index = self._used.index_of(device)
        self._used.split(index, logical_devices)
        parts = f"its {len(logical_devices)} logical devices run on {self._used.all[index]}, and "
        self._report(
            f"set_logical_device_configuration of GPU:{index}: "
            f"{parts if len(logical_devices) > 1 else ''}memory_limit has no effect",
            user_line(),
        )

    def get_device_details(self, original: Any, device: Any) -> dict[str, Any]:
        if device.device_type != "GPU":
            return original(device)
        name = f"stand-in {self._used.all[self._used.index_of(device)]}"
        capability = self._used.capability
        known = {} if capability is None else {"compute_capability": capability}
        return {"device_name": name, **known}

    def get_memory_info(self, original: Any, device: Any) -> Any:
        return original(self._used.substitute(device))

    get_memory_usage = get_memory_info
    reset_memory_stats = get_memory_info

    def is_gpu_available(
        self, original: Any, cuda_only: bool = False, min_cuda_compute_capability: Any = None
    ) -> bool:
        self._used.report_once()
        wanted = tuple(min_cuda_compute_capability or (0, 0))
        return bool(self._used.names) and (self._used.capability or (0, 0)) >= wanted

    def gpu_device_name(self, original: Any) -> str:
        self._used.report_once()
        return "/device:GPU:0" if self._used.names else ""
