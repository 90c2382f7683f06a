"""Settings of the script that have no effect: TensorFlow has started on evener's devices."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

import evener
from evener.devices import resolve_devices
from evener.errors import DeviceError
from evener.run.notes import Notes
from evener.run.user_line import user_line

_DEVICE_CALLS = (
    (tf.config, "set_visible_devices"),
    (tf.config, "set_logical_device_configuration"),
    (tf.config.experimental, "set_visible_devices"),
    (tf.config.experimental, "set_virtual_device_configuration"),
    (tf.config.experimental, "set_memory_growth"),
)
_THREAD_CALLS = (
    ("set_intra_op_parallelism_threads", "TF_NUM_INTRAOP_THREADS"),
    ("set_inter_op_parallelism_threads", "TF_NUM_INTEROP_THREADS"),
)
# Prefixes of variables that are read when TensorFlow or Keras is imported, or TensorFlow starts.
_READ_EARLY = ("CUDA_", "EVENER_", "KERAS_", "TF_", "XLA_")
# The log does not matter for training, and a cluster is read when a strategy is created.
_READ_LATER = ("TF_CPP_", "TF_CONFIG")

_IN_EFFECT = {"KERAS_BACKEND": "tensorflow"}


def skip_late_settings(devices: Sequence[str], notes: Notes) -> None:
    """Skip calls of ``tf.config`` that come too late, with a note, instead of an error.

    Args:
        devices: The devices of the run.
        notes: Reports every skipped call.
    """
    why = f"evener runs on {', '.join(devices)}; --devices chooses others"
    for module, name in _DEVICE_CALLS:
        setattr(module, name, _skipping(getattr(module, name), why, notes))
    own: Any = evener
    own.use_devices = _devices_of_run(own.use_devices, devices, why, notes)
    for name, variable in _THREAD_CALLS:
        why = f"TensorFlow has started; set {variable} in the environment instead"
        threading = tf.config.threading
        setattr(threading, name, _skipping(getattr(threading, name), why, notes))


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
