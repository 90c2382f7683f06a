"""The watched process: runs the program, decides when enough was seen, examines, ends.

imports | first steps: traces | 5 timed steps | 2 measured by a profile | timed steps | examine
... enough --> end
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import functools
import json
import os
import re
import sys
import tempfile
import threading
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from evener.base.user_code import is_own
from evener.doctor.facts import CodeLine, Growth, Outcome, Raised
from evener.doctor.watch.recorder import FLUSH_SECONDS, SCOPE, Recorder, own_line
from evener.doctor.watch.sandbox import enter
from evener.doctor.watch.settings import Settings
from evener.doctor.watch.supervisor import STACKS_SIGNAL
from evener.run.script import Loading, read, run_as_main, show_failures_of

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')
_THREAD = re.compile(r"^(?:Current t|T)hread (0x[0-9a-f]+).*$", re.MULTILINE)
_CODE = re.compile(r"\[([A-Z]{3,6}-\d{3})\]")
# Programs that close all files close the first ones by their numbers, and get them again.
_HIGH_FILE = 200
_MEASURE_AFTER = 5
_MEASURED_STEPS = 2
# The end of an epoch is waited for so long, to see what comes between two epochs.
_EPOCH_SECONDS = 6.0
# Where every step traces, so many seconds of it are enough.
_TRACED_SECONDS = 10.0
_VERSION = re.compile(r"(V\d+|\[.*\])+$")
_ITERATOR = re.compile(r"^Iterator::(?P<path>[A-Za-z:\[\]0-9_]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits:
    """Limits of a watched run."""

    time_limit_seconds: float = 120.0  # Time limit of the run, above 0
    num_steps: int = 20  # Number of steps to watch, without those that trace; from 1
    min_seconds: float = 1.0  # Least total duration of these steps
    num_loops: int = 1  # Number of loops that train to watch, one after the other
    extra_seconds: float = 30.0  # Seconds to wait for further loops after the first
    grace_seconds: float = 2.0  # Time to end after SIGTERM, before SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest(WatchLimits):
    """Script to run, and conditions to end it."""

    script: str  # The script as it was given, or the name of a module
    facts: str  # The file for the facts
    stacks: str  # The file for Python's stacks
    as_module: bool  # Whether it is a module
    args: list[str]  # Arguments of the script
    devices: str | None  # Device spec to configure first; None not to configure TensorFlow
    gpu_names: bool  # Whether CPU devices appear as GPUs on a machine without GPUs
    sandbox: list[str]  # The folder whose changes vanish, and the one that is kept; empty for none


def main() -> None:
    request = WatchRequest(**json.loads(sys.argv[1]))
    if request.sandbox:
        enter(*request.sandbox)
    recorder = Recorder(request.facts)
    settings = Settings(recorder)
    settings.watch_environment()
    dump_stacks(request.stacks)
    watched = _Watched(recorder, settings, request)
    watched.watch_exits()
    recorder.every(FLUSH_SECONDS, recorder.flush_each_second)
    install = functools.partial(recorder.safely, watched.install)
    Loading(("tensorflow", "keras"), install).watch()
    # With Keras 2 TensorFlow does not import Keras 3 itself.
    Loading(("tensorflow",), _import_keras).watch()
    with watched.recorded():
        if request.devices is not None:
            from evener.devices.use import lay_out

            lay_out(request.devices)
        script = read(request.script, as_module=request.as_module)
        try:
            run_as_main(script, request.args)
        except SystemExit:
            raise
        except BaseException:
            show_failures_of(script.path)
            raise


def _import_keras() -> None:
    if "keras" not in sys.modules:
        import keras  # noqa: F401 # pyright: ignore[reportUnusedImport]


class _Watched:
    def __init__(self, recorder: Recorder, settings: Settings, request: WatchRequest) -> None:
        self._recorder = recorder
        self._settings = settings
        self._request = request
        self._exit_now = os._exit
        self._profile: tempfile.TemporaryDirectory[str] | None = None
        self._num_measured = 0
        self._growth: Growth | None = None
        self._enough_at: float | None = None
        self._loops: Any = None
        self._losses: Any = None
        self._training: Any = None
        self._data: Any = None

    def install(self) -> None:
        from evener.doctor.watch.data import Data
        from evener.doctor.watch.loops import Loops
        from evener.doctor.watch.losses import LossWatch
        from evener.doctor.watch.times import Times
        from evener.doctor.watch.training import Training

        if self._request.gpu_names:
            self._recorder.safely(self._answer_as_gpus)
        recorder = self._recorder
        times = Times(recorder)
        self._loops = loops = Loops(recorder, times)
        self._losses = LossWatch(recorder, loops)
        self._training = Training(recorder, loops, self._losses)
        self._data = Data(recorder, loops)
        parts = [times, loops, self._losses, self._data, self._settings, self._training]
        # The last hears of a step last: it may be the end.
        recorder.parts += [*parts, self]
        for part in parts:
            recorder.safely(part.watch)

    def _answer_as_gpus(self) -> None:
        from evener.run.device_calls import answer_as_gpus
        from evener.run.script import Note, UserLine

        def record_note(text: str, line: UserLine | None) -> None:
            self._settings.emulates_gpus = True
            self._recorder.notes[str(Note(text=text, line=line))] = None

        answer_as_gpus(None, record_note)

    def facts(self) -> dict[str, Any]:
        return {"growth": self._growth}

    def on_step(self, is_timed: bool) -> None:
        num_timed = len(self._loops.main.samples)
        if self._loops.is_measuring:
            self._num_measured += 1
            if self._num_measured >= _MEASURED_STEPS:
                self._recorder.safely(self._stop_measuring)
        elif is_timed and num_timed >= _MEASURE_AFTER and self._profile is None:
            self._recorder.safely(self._start_measuring)
        if self._is_enough():
            self._finish(Outcome.ENOUGH, where=own_line())
            # The program's streams may be closed by now.
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            self._exit_now(0)
        self._recorder.flush(least_seconds=2.0)

    def _is_enough(self) -> bool:
        """Return whether as many loops as wanted have been seen long enough."""
        loops = list(self._loops.loops.values())
        num_seen = sum(map(self._is_seen, loops))
        if not num_seen:
            return False
        now = self._recorder.clock()
        self._enough_at = self._enough_at or now
        waited = now - self._enough_at
        if num_seen < self._request.num_loops:
            return waited > self._request.extra_seconds
        loop = loops[-1]
        per_epoch = loop.steps_per_epoch or self._data.steps_per_epoch()
        is_last = loop.epochs >= 2 or loop.epochs_wanted == 1 or loop.kind == "graph loop"
        if not per_epoch or is_last or waited > _EPOCH_SECONDS:
            return True
        # What comes between two epochs is worth a short wait.
        left = per_epoch + 1 - (loop.num_steps - loop.epoch_began_at)
        return left * loop.median("step") > _EPOCH_SECONDS

    def _is_seen(self, loop: Any) -> bool:
        traced, timed = (
            (len(samples), sum(sample["step"] for sample in samples))
            for samples in (loop.traced_samples, loop.samples)
        )
        wanted = self._request.num_steps
        if traced[1] > _TRACED_SECONDS and traced[0] > wanted / 2:
            return True
        return timed[1] >= self._request.min_seconds and timed[0] >= wanted

    def _start_measuring(self) -> None:
        import tensorflow as tf

        self._profile = tempfile.TemporaryDirectory(prefix="evener-profile-")
        tf.profiler.experimental.start(self._profile.name)
        self._loops.is_measuring = True

    def _stop_measuring(self) -> None:
        import tensorflow as tf

        from evener._tf_private import watched

        self._loops.is_measuring = False
        assert self._profile is not None
        tf.profiler.experimental.stop()
        planes = watched.kernel_times(self._profile.name)
        self._profile.cleanup()
        stages: defaultdict[str, float] = defaultdict(float)
        for events in planes.values():
            for name, (_, seconds) in events.items():
                iterator = _ITERATOR.match(name)
                if iterator is not None and SCOPE not in name:
                    path = [_VERSION.sub("", part) for part in iterator["path"].split("::")]
                    stages[path[-1]] += seconds
                    if len(path) > 1:
                        stages[path[-2]] -= seconds
        steps = max(1, self._num_measured)
        self._data.stage_seconds = {name: max(0.0, own) / steps for name, own in stages.items()}

    def _finish(self, outcome: Outcome, **fields: Any) -> None:
        recorder = self._recorder
        if not recorder.is_here or recorder.ending is not None:
            return
        recorder.ending = recorder.ending_now(outcome, **fields)
        # What comes now may hang; what is known is safe.
        recorder.safely(recorder.flush)
        if self._loops is not None:
            if self._loops.is_measuring:
                recorder.safely(self._stop_measuring)
            self._settings.is_looking = False
            held = self._loops.held() | self._losses.held()
            self._growth = recorder.safely(self._loops.times.kept.growth, held)
            recorder.safely(self._training.examine)
            recorder.safely(self._data.examine)
        recorder.safely(recorder.flush)

    def watch_exits(self) -> None:
        def _exit(status: int) -> None:
            self._recorder.safely(
                lambda: self._finish(Outcome.EXITED, exit_code=status, where=own_line())
            )
            self._exit_now(status)

        os._exit = _exit

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record how the block ends. Its exceptions are raised again."""
        try:
            yield
        except SystemExit as error:
            code = error.code
            status = code if isinstance(code, int) else 0 if code is None else 1
            self._finish(Outcome.EXITED, exit_code=status, where=where_raised(error))
            raise
        except BaseException as error:
            raised = Raised(
                kind=type(error).__name__,
                message=_message(error),
                where=where_raised(error),
                code=_code_of(error),
            )
            self._finish(Outcome.CRASHED, raised=raised, where=raised.where)
            raise
        self._finish(Outcome.FINISHED, exit_code=0)


def dump_stacks(path: str) -> None:
    """Have Python's stacks written on a fatal signal, and when the supervisor asks for them.

    Even a thread that holds Python's lock is seen so. Python's own timer for it would keep
    forks of the program from ending.
    """
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    kept = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _HIGH_FILE)
    os.close(opened)
    os.write(kept, f"main {threading.get_ident()}\n".encode())
    faulthandler.enable(kept, all_threads=True)
    faulthandler.register(STACKS_SIGNAL, kept, all_threads=True)


def _code_of(error: BaseException) -> str:
    """Return the code of an error of evener, also if a library has put it into its own."""
    for raised in _chain(error):
        code = getattr(raised, "code", "")
        if isinstance(code, str) and _CODE.fullmatch(f"[{code}]"):
            return code
    match = _CODE.match(_message(error).lstrip())
    return match[1] if match else ""


def where_raised(error: BaseException) -> CodeLine | None:
    """Return the innermost line of the person's own that an exception came from.

    AutoGraph and TensorFlow write the lines of functions that they rewrote into the message;
    tracebacks do not have them.
    """
    own = _own_lines(_FRAME.findall(_message(error)))
    for raised in _chain(error):
        if own:
            break
        walked = traceback.walk_tb(raised.__traceback__)
        lines = [(frame.f_code.co_filename, number) for frame, number in walked]
        if isinstance(raised, SyntaxError) and raised.filename and raised.lineno:
            lines.append((raised.filename, raised.lineno))
        own = _own_lines(lines)
    return own[-1] if own else None


def _own_lines(lines: Iterable[tuple[str, int | str]]) -> list[CodeLine]:
    return [CodeLine(file=file, line=int(number)) for file, number in lines if is_own(file)]


def innermost_in_dump(dump: str, thread: int) -> CodeLine | None:
    """Return where a thread stood in the last dump of `faulthandler`, innermost first."""
    _, *parts = _THREAD.split(dump)
    stacks = [
        (int(ident, 16), _own_lines(_FRAME.findall(stack)))
        for ident, stack in zip(parts[::2], parts[1::2], strict=True)
    ]
    # The last dump counts, and in it the main thread before the others.
    for wanted in (True, False):
        for ident, own in reversed(stacks):
            if own and (ident == thread) is wanted:
                return own[0]
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:
        return f"its text cannot be had: {type(failed).__name__}"
