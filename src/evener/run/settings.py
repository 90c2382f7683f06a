"""Settings of the script that have no effect: TensorFlow has started on evener's devices."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evener._tf_private.patches import Patch
from evener.devices import resolve_devices
from evener.errors import DeviceError
from evener.run.notes import Notes
from evener.run.user_line import user_line
from evener.versions import check_backend

_THREAD_CALLS = {
    "set_intra_op_parallelism_threads": "TF_NUM_INTRAOP_THREADS",
    "set_inter_op_parallelism_threads": "TF_NUM_INTEROP_THREADS",
}
_DEVICES = Patch(
    "settings of devices",
    "tensorflow:config.set_visible_devices",
    "tensorflow:config.set_logical_device_configuration",
    "tensorflow:config.experimental.set_visible_devices",
    "tensorflow:config.experimental.set_virtual_device_configuration",
    "tensorflow:config.experimental.set_memory_growth",
    why="evener has started TensorFlow, which refuses these settings from then on.",
    if_it_changes="Scripts that configure devices end with TensorFlow's error.",
)
_THREADS = Patch(
    "settings of threads",
    *(f"tensorflow:config.threading.{name}" for name in _THREAD_CALLS),
    why=_DEVICES.why,
    if_it_changes="Scripts that set numbers of threads end with TensorFlow's error.",
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
_IN_EFFECT = {_BACKEND: "tensorflow"}


def skip_late_settings(devices: Sequence[str], notes: Notes) -> None:
    """Skip calls of ``tf.config`` that come too late, with a note, instead of an error.

    Args:
        devices: The devices of the run.
        notes: Reports every skipped call.
    """
    why = f"evener runs on {', '.join(devices)}; --devices chooses others"
    _DEVICES.apply(lambda original: _skipping(original, why, notes))
    _USE_DEVICES.apply(lambda original: _devices_of_run(original, devices, why, notes))

    def skip_threads(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        variable = _THREAD_CALLS[name]
        why = f"TensorFlow has started; set {variable} in the environment instead"
        return _skipping(original, why, notes)

    _THREADS.apply_by_name(skip_threads)


def _skipping(original: Callable[..., Any], why: str, notes: Notes) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except RuntimeError:
            # By this error evener itself finds out whether TensorFlow has started.
            if str(sys._getframe(1).f_globals.get("__name__")).startswith("evener.devices"):
                raise
            # TensorFlow raises it for every setting that is fixed once it has started.
            notes.add(f"{original.__name__} is skipped: {why}", user_line())
            return None

    return call


def _devices_of_run(
    original: Callable[..., Any], devices: Sequence[str], why: str, notes: Notes
) -> Callable[..., Any]:
    """Return the replacement of `evener.use_devices`: other devices are those of the run."""

    @functools.wraps(original)
    def use_devices(spec: str | None = None, **settings: Any) -> Any:
        try:
            return original(spec, **settings)
        except DeviceError as error:
            if error.code != "DEV-013":
                raise
            notes.add(f"use_devices({spec!r}) is skipped: {why}", user_line())
            return resolve_devices(devices)

    return use_devices


def refuse_other_backends() -> None:
    """End the script with RUN-004 where it chooses another backend of Keras than TensorFlow."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "os.putenv" and os.fsdecode(args[0]) == _BACKEND:
            # An exception of an audit hook goes to the script's line.
            check_backend(os.fsdecode(args[1]))

    # An audit hook cannot be removed, but the script runs until the end of the process.
    sys.addaudithook(hook)


def report_late_variables(environ: Mapping[str, str], notes: Notes) -> None:
    """Report environment variables that the script sets after they were read.

    Args:
        environ: The environment variables of this process.
        notes: Reports every such variable.
    """

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event != "os.putenv":
            return
        name, value = (os.fsdecode(text) for text in args)
        if not name.startswith(_READ_EARLY) or name.startswith(_READ_LATER):
            return
        # The event comes before the change.
        if value not in (environ.get(name), _IN_EFFECT.get(name)):
            notes.add(
                f"{name}={value} may have no effect: TensorFlow has started; set it in the "
                "environment, before evener run",
                user_line(),
            )

    # An audit hook cannot be removed, but the script runs until the end of the process.
    sys.addaudithook(hook)
