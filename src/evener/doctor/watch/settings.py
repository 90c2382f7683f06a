"""Settings, strategies and pins of a program: when each was made, and whether it still could count.

os.environ[...] = ...   import tensorflow   ...   first use of devices   ...   first step
|                        |
read here: flags of TensorFlow and Keras         read here: CUDA_VISIBLE_DEVICES, memory growth
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from evener.doctor.facts import AT_DEVICES, AT_IMPORT, CodeLine, PinUse, Setting, StrategyUse
from evener.doctor.watch.recorder import (
    Original,
    Recorder,
    is_asked_by_user,
    making_line,
    own_frame,
    own_line,
)

_NAMES = frozenset((*AT_IMPORT, *AT_DEVICES))
_MOST_TEXT = 300
# Modules of Python that fork for a program.
_FORKING = tuple(str(Path(os.__file__).parent / name) for name in ("multiprocessing", "concurrent"))
# What these call is what the program has called.
_WRAPPERS = (
    "evener.doctor.watch",
    "evener._tf_private.functions",
    "evener.run.device_calls",
    "evener.run.replace",
)


class Settings:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._settings = [
            Setting(name=name, value=os.environ[name][:_MOST_TEXT])
            for name in sorted(_NAMES)
            if name in os.environ
        ]
        self._imported_at: CodeLine | None = None
        self._is_imported = False
        self._devices_at: CodeLine | None = None
        self._strategies: dict[int, tuple[Any, Counter[str], CodeLine]] = {}
        self._pins: dict[tuple[str, CodeLine], list[Any]] = {}
        self._open_pins: list[list[Any]] = []
        self.is_looking = True  # Not any more when the watcher itself asks for devices
        self.emulates_gpus = False

    def watch_environment(self) -> None:
        def heard(event: str, arguments: tuple[Any, ...]) -> None:
            # Python has no way to take a hook back.
            if event in ("os.putenv", "os.fork") and self.is_looking and self._recorder.is_here:
                note = self._set if event == "os.putenv" else self._fork
                self._recorder.safely(note, *map(os.fsdecode, arguments))
            elif event == "import" and not self._is_imported and arguments[0] == "tensorflow":
                self._is_imported = True
                self._imported_at = own_line()

        sys.addaudithook(heard)

    def _fork(self) -> None:
        """Take note of a fork that the program asks for, by Python alone."""
        frame: FrameType | None = sys._getframe(3)  # what is behind `safely` and the hook
        while frame is not None and frame.f_code.co_filename.startswith(_FORKING):
            frame = frame.f_back
        where = own_line(frame) if frame is not None and is_asked_by_user(frame) else None
        if where is not None and self._are_devices_started():
            self._note("fork", "", where, self._devices_at, is_late=True)

    def _set(self, name: str, value: str) -> None:
        where = own_line()
        if name not in _NAMES or where is None:
            return  # A library sets it for itself.
        if name in AT_IMPORT and self._is_imported:
            self._note(name, value, where, self._imported_at, is_late=True)
        else:
            is_late = name in AT_DEVICES and self._are_devices_started()
            self._note(name, value, where, self._devices_at if is_late else None, is_late=is_late)

    def _note(
        self, name: str, value: str, where: CodeLine, read_at: CodeLine | None, **more: Any
    ) -> None:
        self._settings.append(
            Setting(name=name, value=value[:_MOST_TEXT], where=where, read_at=read_at, **more)
        )

    def _are_devices_started(self) -> bool:
        if "tensorflow" not in sys.modules or "evener._tf_private" not in sys.modules:
            return False
        from evener._tf_private import watched

        return watched.are_devices_started() or self._devices_at is not None

    def watch(self) -> None:
        from evener._tf_private import watched
        from evener._tf_private.functions import left_by_name, left_to_autograph

        watched.CONFIGURATION.apply_by_name(left_by_name(self._configure))
        watched.PINS.apply(left_to_autograph(self._pin))
        watched.DEVICE_START.apply_by_name(left_by_name(self._start))
        made = {"__init__": self._make_strategy}
        watched.STRATEGIES.apply_each(made, "made", by=self._recorder.after_init)
        distributes = ("experimental_distribute_dataset", "distribute_datasets_from_function")
        around = {"scope": self._scope, **dict.fromkeys(distributes, self._distribute)}
        watched.STRATEGIES.apply_each(around, by=left_to_autograph)

    def _start(self, name: str, original: Original, context: Any, *args: Any, **kwargs: Any) -> Any:
        lists = name == "_initialize_physical_devices"
        began = context._physical_devices is None if lists else not context._initialized
        if began and self._devices_at is None and self.is_looking:
            self._devices_at = own_line()
        return original(context, *args, **kwargs)

    def _configure(self, name: str, original: Original, *args: Any, **kwargs: Any) -> Any:
        from evener._tf_private import watched

        where = None if _is_evener(sys._getframe(2)) else own_line()
        was_started = self._recorder.safely(watched.are_devices_started)
        error = ""
        try:
            return original(*args, **kwargs)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
            raise
        finally:
            if where is not None:
                given = [*map(str, args), *(f"{key}={value}" for key, value in kwargs.items())]
                is_late = bool(error) and bool(was_started)
                read_at = self._devices_at if is_late else None
                self._note(name, ", ".join(given), where, read_at, is_late=is_late, error=error)

    def _make_strategy(self, strategy: Any) -> None:
        where = making_line()
        if where is not None and not type(strategy).__name__.startswith("_Default"):
            self._strategies[id(strategy)] = strategy, Counter[str](), where

    def _scope(self, original: Original, strategy: Any) -> Any:
        if is_asked_by_user(sys._getframe(2)):
            self._count(strategy, "num_scopes")
        return original(strategy)

    def _distribute(self, original: Original, strategy: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        result = original(strategy, *args, **kwargs)
        if args and isinstance(args[0], tf.data.Dataset):
            result._evener_of = args[0]
        return result

    def _count(self, strategy: Any, key: str) -> None:
        if id(strategy) in self._strategies:
            self._strategies[id(strategy)][1][key] += 1

    def on_run(self, strategy: Any, args: Any, kwargs: Any) -> None:
        import tensorflow as tf

        from evener._tf_private.tensors import is_per_replica

        self._count(strategy, "num_runs")
        parts = tf.nest.flatten(kwargs.get("args", args[0] if args else ()))
        shapes = [getattr(part, "shape", None) for part in parts]
        if strategy.num_replicas_in_sync > 1 and not any(map(is_per_replica, parts)):
            if any(len(shape or ()) > 1 for shape in shapes):
                self._count(strategy, "num_plain_batches")

    def on_step(self, _is_timed: bool) -> None:
        # A strategy with a run has trained, or that of the model.
        for strategy, counts, _ in self._strategies.values():
            if counts["num_runs"]:
                self._count(strategy, "trained")

    def on_fit(self, _where: Any, args: Any, _kwargs: Any) -> None:
        self._count(getattr(args[0], "distribute_strategy", None), "trained")

    def _pin(self, original: Original, name: Any) -> Any:
        caller = sys._getframe(2)
        where = own_line(caller) if own_frame(caller) is caller else None
        pinned = original(name)
        if where is None or not isinstance(name, str):
            return pinned
        return self._pinned(pinned, self._pins.setdefault((name, where), [False]))

    @contextlib.contextmanager
    def _pinned(self, pinned: Any, found: list[Any]) -> Iterator[Any]:
        with pinned as entered:
            self._open_pins.append(found)
            try:
                yield entered
            finally:
                self._open_pins.remove(found)

    def on_tape(self, *_: Any) -> None:
        for found in self._open_pins:
            found[0] = True

    on_gradient = on_tape

    def facts(self) -> dict[str, Any]:
        return {
            "settings": tuple(self._settings),
            "strategies": tuple(
                StrategyUse(
                    kind=type(strategy).__name__,
                    where=where,
                    num_replicas=strategy.num_replicas_in_sync,
                    **{**counts, "trained": counts["trained"] > 0},
                )
                for strategy, counts, where in self._strategies.values()
            ),
            "pins": tuple(
                PinUse(device=name, where=where, exists=self._exists(name), trains=trains)
                for (name, where), (trains,) in self._pins.items()
            ),
        }

    def _exists(self, name: str) -> bool | None:
        import tensorflow as tf

        from evener._tf_private import watched

        if not watched.are_devices_started():
            return None
        kind, _, index = short_device(name).partition(":")
        if kind not in ("cpu", "gpu") or (index and not index.isdigit()):
            return None
        known = {short_device(device.name) for device in tf.config.list_logical_devices()}
        if self.emulates_gpus and not any(device.startswith("gpu") for device in known):
            known |= {device.replace("cpu", "gpu") for device in known}
        return f"{kind}:{index or 0}" in known


def _is_evener(frame: FrameType | None) -> bool:
    """Return whether evener makes a setting for the program, not the program itself."""
    while frame is not None and not is_asked_by_user(frame):
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("evener.") and not name.startswith(_WRAPPERS):
            return True
        frame = frame.f_back
    return frame is None


def short_device(name: str) -> str:
    """Return the name of a device as evener writes it.

    >>> short_device("/job:localhost/replica:0/task:0/device:GPU:1")
    'gpu:1'
    """
    parts = name.rstrip("/").lower().split("/")[-1].split(":")
    return ":".join(parts[-2:]) if len(parts) >= 2 and parts[-1].isdigit() else name.lower()
