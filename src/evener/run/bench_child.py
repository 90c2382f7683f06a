"""Process of a benchmark: ``python -m evener.run.bench_child REQUEST``.

The steps of a script are timed by a callback in ``fit``, by counters, or from call to call.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import keras
import tensorflow as tf

from evener._tf_private.fits import adding_callbacks
from evener._tf_private.functions import TRACED_FUNCTIONS
from evener._tf_private.patches import Patch
from evener.base.records import from_json, to_json
from evener.devices import use_devices
from evener.devices.names import tf_device
from evener.errors import EvenerError
from evener.recording.measured import count_work
from evener.run.bench import TimedRun, TimedSteps
from evener.run.first_step import end_with
from evener.run.loops import is_called_by_script
from evener.run.replace import replace_with
from evener.run.script import read, run_as_main
from evener.run.session import RunLayout, prepare
from evener.strategy import Strategy
from evener.strategy.step_audit import trains

_FEWEST = 5
"""Fewest steps after the warm-up that a result is made of."""

_COMPILE = Patch(
    "jit_compile of benchmarks",
    "keras:Model.compile",
    why="A benchmark compares a script with XLA and without, and does not change its text.",
    if_it_changes="`evener bench --xla` compares the same twice.",
)


def main() -> None:
    file = Path(sys.argv[1])
    request = from_json(file.read_text(encoding="utf-8"), TimedRun)

    def compile(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "jit_compile": request.layout.jit_compile})

    if request.layout.jit_compile is not None:
        _COMPILE.apply(replace_with(compile))
    run = _BenchRun(request, file)
    try:
        run.run()
    except EvenerError as error:
        run.answer(TimedSteps(problem=f"{error.code}: {error.what}"))
    except Exception as error:
        # TensorFlow's errors in functions begin with "in user code", and end with what happened.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
        problem = f"{type(error).__name__}: {lines[-1][:300]}"
        if request.layout.kind != "evener":
            problem = f"the script does not run under it: {problem}"
        run.answer(TimedSteps(problem=problem, is_failure=True))
    run.end()


class _BenchRun:
    def __init__(self, request: TimedRun, file: Path) -> None:
        self._request = request
        self._file = file
        self._process = os.getpid()
        self._seconds: list[float] = []
        self._wanted = request.num_warm_up + request.num_steps
        self._strategy: Strategy | None = None
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()

    def run(self) -> None:
        request = self._request
        script = read(request.target, as_module=request.is_module)
        with adding_callbacks(lambda: FitTimes(self._seconds, self._wanted, self.done)):
            if request.layout.kind == "mirrored":
                devices = [tf_device(device.name) for device in use_devices(request.devices)]
                # A script with a strategy of its own runs as it is written.
                if "Strategy(" not in script.source:
                    strategy = tf.distribute.MirroredStrategy(devices)
                    tf.distribute.experimental_set_strategy(strategy)
                run_as_main(script, request.args)
                return
            plan, shares = request.layout.plan, request.layout.shares
            layout = RunLayout(devices=request.devices, plan=plan, shares=shares, verify=False)
            session = prepare(script, layout)
            self._strategy = session.strategy
            if request.record:
                self._stack.enter_context(session.record(Path(request.record)))
            else:
                count_work(session.strategy)
            if session.strategy.is_partitioned:
                threading.Thread(target=self._watch, name="evener bench", daemon=True).start()
            else:
                time_calls(self._seconds, self._wanted, self.done)
            session.run(request.args)

    def _watch(self) -> None:
        """End when the strategy has counted so many steps outside of ``fit``."""
        while len(seconds := self._counted_seconds()) < self._wanted:
            time.sleep(_TICK_SECONDS)
        self.done(seconds)

    def _counted_seconds(self) -> list[float]:
        if self._strategy is None:
            return []
        records = self._strategy.share_controller.step_records()
        return [
            after.began - record.began
            for record, after in itertools.pairwise(records)
            if record.trace == after.trace
        ]

    def done(self, seconds: Sequence[float]) -> None:
        """Answer with the steps after the warm-up, and end the process."""
        timed = tuple(seconds[self._request.num_warm_up :])
        batch_size = None
        if self._strategy is not None:
            records = self._strategy.share_controller.step_records()
            batch_size = max((sum(record.samples) for record in records), default=None)
        self.answer(TimedSteps(seconds=timed, batch_size=batch_size))

    def end(self) -> NoReturn:
        seconds = self._seconds or self._counted_seconds()
        needed = self._request.num_warm_up + _FEWEST
        if len(seconds) >= needed:
            self.done(seconds)
        if not seconds:
            why = "a loop of its own, which only evener times" if not self._strategy else "no step"
            self.answer(TimedSteps(problem=f"no step was timed: {why}"))
        self.answer(TimedSteps(problem=f"{len(seconds)} steps; {needed} are needed"))

    def answer(self, times: TimedSteps) -> NoReturn:
        """Write the answer and end the process, with its threads."""
        if os.getpid() != self._process:
            # A process that the program forked has no answer to give.
            os._exit(0)
        # Whoever comes second waits for the end.
        self._lock.acquire()
        with contextlib.suppress(OSError):
            self._stack.close()
        end_with(self._file, to_json(times))


_TICK_SECONDS = 0.1

Done = Callable[[Sequence[float]], object]
"""Function that takes the seconds of the steps, the first ones too."""


class FitTimes(keras.callbacks.Callback):
    def __init__(self, seconds: list[float], num_steps: int, done: Done) -> None:
        super().__init__()
        self._seconds, self._num_steps, self._done = seconds, num_steps, done
        self._last: tuple[int, float] | None = None

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._last = None

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Time the steps since the last call: several with ``steps_per_execution``."""
        now = time.perf_counter()
        if self._last is not None:
            before, at = self._last
            count = batch - before
            self._seconds.extend([(now - at) / count] * count)
            if len(self._seconds) >= self._num_steps:
                self._done(self._seconds)
        self._last = batch, now


def time_calls(seconds: list[float], num_steps: int, done: Done) -> None:
    """Time a loop of the script's own on one device, which runs its functions as they are."""
    step: object | None = None
    others: list[object] = []
    last = 0.0

    def call(original: Callable[..., Any], function: Any, /, *args: Any, **kwargs: Any) -> Any:
        nonlocal step, last
        if not is_called_by_script(sys._getframe(2)):
            return original(function, *args, **kwargs)
        now = time.perf_counter()
        if function is step:
            seconds.append(now - last)
            last = now
            if len(seconds) >= num_steps:
                done(seconds)
        results = original(function, *args, **kwargs)
        if step is None and function not in others:
            # It is traced now.
            others.append(function)
            if trains(function.get_concrete_function(*args, **kwargs)):
                step, last = function, now
        return results

    TRACED_FUNCTIONS.apply_each({"__call__": call}, "scripts", by=replace_with)


if __name__ == "__main__":
    main()
