"""A training loop of a script that is resumed: what its steps returned is told, not computed again.

::

    first run    step 1 .. step 640 | checkpoint | step 641 .. killed
    second run   step 1 .. step 640, as told     | assigns all variables, computes step 641 ..

The script runs from its first line, so that its lists, its counters and its position in the data
are what they were. From the first step on, these are events, in their order:

    run     a traced function with variables returned tensors
    step    eager lines that became a step returned values
    call    Model.evaluate or Model.predict returned
    read    Python read a variable between two steps
    write   Keras or TensorFlow wrote a file, which is not written again
    load    Keras or TensorFlow looked for a file to read

A checkpoint has the events so far and the values of all variables. A script that does not do what
the next event says has other data or other files than its first run, and ends with CKPT-021.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
import weakref
import zlib
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
import tensorflow as tf

from evener._tf_private import workers as private
from evener._tf_private.functions import effects_of, running_functions_by
from evener._tf_private.models import EVALUATIONS
from evener.checkpoint import random_state, storage
from evener.checkpoint.checkpoint import Checkpoint, Position, Termination
from evener.checkpoint.variables import ProgramVariables, variables_of
from evener.errors import CheckpointError
from evener.run.hoister import Hoister, all_variables, is_of_evener
from evener.run.loops import name_in_program
from evener.run.replace import replace_with
from evener.run.script import Notes, UserLine, user_line
from evener.strategy.prepared import DISTRIBUTED_STEP
from evener.workers.late import packable, tensors_as_arrays
from evener.workers.mesh import pack, unpack

LIMIT_BYTES = 256 << 20
"""Most bytes of events that are kept."""
SECONDS = 60.0
"""Time between two checkpoints, if the number of steps is not given."""
_SAMPLE_BYTES = 1 << 20
"""Bytes of an array whose checksum is taken, spread over the array."""
_PLAIN = bool | int | float | str | bytes | None


class Event(msgspec.Struct, array_like=True):
    kind: str
    key: str  # What the script does: the function and its batch, the variable, the path.
    told: bytes  # What it was told.
    random: random_state.State | None = None  # The random states behind it, if it changed them.


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredLoop:
    loads: tuple[str, ...]  # Files that were looked for before the first step.


def _read_loop(state: Mapping[str, Any]) -> _StoredLoop:
    if [entry["path"] for entry in state["arrays"]] != ["events"]:
        raise storage.DamagedError("state.json: it has no events")
    return storage.read_record(state.get("loop"), _StoredLoop, "state.loop")


class _AllVariables(Checkpoint):
    """Checkpoint of the variables of a program, by their names and the order of their making."""

    wanted: frozenset[str] | None = None  # Of a checkpoint that is restored: those that it has.

    def _variables(self) -> ProgramVariables:
        # What the program has dropped goes at another moment in each run.
        gc.collect()
        counted = Counter[str]()
        objects: dict[str, tf.Variable] = {}
        by_making = sorted(all_variables(), key=lambda v: int(v._unique_id.rpartition("_")[2]))
        for variable in by_making:
            if not is_of_evener(variable):
                counted[variable.name] += 1
                objects[f"{variable.name}#{counted[variable.name]}"] = variable
        found = variables_of(objects)
        if self.wanted is None:
            return found
        named = tuple(item for item in found.named if item.spec.path in self.wanted)
        return ProgramVariables(named=named, graph=found.graph)


class Fits(Protocol):
    """Calls of ``fit`` of the script, which have checkpoints of their own."""

    num_fits: int
    open: list[UserLine | None]  # Lines of the fits that run


class ResumableLoop:
    """Events of a script's training loop, from its first step on."""

    def __init__(self, folder: str, every_steps: int | None, notes: Notes, fits: Fits) -> None:
        self._checkpoint = _AllVariables(folder, keep=2)
        self._every_steps = every_steps
        self._notes, self._fits = notes, fits
        self._thread = threading.get_ident()
        self.line: UserLine | None = None  # Line of the first step; None before it.
        self.is_inside = False  # Whether an event happens now.
        self.has_computed = False  # Whether this run has made a step, and was not told of it.
        self.is_as_written = False  # Whether eager lines run that may become a step.
        self._trains: dict[bytes, bool] = {}  # Whether a function writes what is trainable.
        self._loads: list[str] = []  # Files that were looked for before the first step.
        self._kept: list[Event] | None = []
        self._num_bytes = self._num_steps = 0
        self._saved_at = time.monotonic()
        self.waiting: deque[Event] = deque()  # Events of the run that is resumed, not told yet.
        self._loaded: storage.Loaded | None = None
        self._last_read: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._termination = Termination()

    @contextlib.contextmanager
    def keeping(self) -> Generator[None]:
        """Keep what the script does, or tell it, until the end of the block."""
        with (
            private.writing_by(self._write, self._check_there),
            running_functions_by(self._run),
            private.before_reads(self._read),
            EVALUATIONS.applied(replace_with(self._evaluate)),
        ):
            try:
                yield
                self._end()
            except SystemExit:
                self._end()
                raise
            finally:
                self._checkpoint.leave_folder()
                self._termination.__exit__()

    def _end(self) -> None:
        if self.waiting:
            raise self._other_program(_as_text(self.waiting[0]), "it ends")
        if self.line is not None:
            self._save()
            self._checkpoint.wait()

    def begin(self) -> None:
        """Begin with the first step: read the checkpoint of the run that is resumed."""
        self.line = user_line()
        if self._fits.num_fits:
            raise self.not_resumable("The script calls fit, too")
        with self._inside():
            self._termination.__enter__()
            loaded = self._loaded = self._checkpoint.load(_read_loop, locks=True)
            if loaded is None:
                return
            events = zlib.decompress(loaded.arrays["events"].tobytes())
            self.waiting.extend(msgspec.msgpack.decode(events, type=list[Event]))
        then, now = (" and ".join(each) for each in (loaded.more.loads, self._loads))
        if then != now:
            raise self._other_program(then or "no file to load", now or "no file to load")
        self._notes.add(
            f"this loop goes on behind step {loaded.state['position']['step']}; up to there the "
            "script gets what its steps returned",
            self.line,
        )

    # The events.

    @property
    def _is_asked(self) -> bool:
        is_elsewhere = threading.get_ident() != self._thread
        return tf.executing_eagerly() and not (is_elsewhere or self.is_inside or self._fits.open)

    def _run(self, run: Callable[..., Any], function: Any, *inputs: Any) -> Any:
        is_own = threading.current_thread().name.startswith("evener-")
        is_elsewhere = threading.get_ident() != self._thread and not is_own
        if is_elsewhere and self.line is not None and effects_of(function).has_resources:
            raise self.not_resumable("It runs a function with variables in another thread")
        effects = effects_of(function) if self._is_asked else None
        if effects is None or not effects.has_resources:
            return run(function, *inputs)
        if function.name not in self._trains:
            written = {id(inputs[place]) for place in effects.written}
            self._trains[function.name] = any(
                v.trainable and id(v.handle) in written for v in all_variables()
            )
        if self.line is None:
            if not self._trains[function.name]:
                return run(function, *inputs)
            self.begin()
        name = name_in_program(tf.compat.as_str(function.name))
        batch = [each for each in inputs if each.dtype not in (tf.resource, tf.variant)]
        if name == DISTRIBUTED_STEP:
            # The sizes of its parts follow the speed of the devices.
            name, batch = "the step", batch[1:]
        if effects.others:
            raise self.not_resumable(
                f"{name} has the operation {effects.others[0]}: what it changes or draws is in no "
                "variable"
            )
        dtypes = [kind.dtype for kind in function.function_type.flat_outputs]
        sums = ", ".join(checksum(packable(each)) for each in batch)
        key = f"{name}({sums}) -> {', '.join(dtype.name for dtype in dtypes)}"

        return self._event(
            "run",
            key,
            lambda: run(function, *inputs),
            keep=lambda outputs: pack([tensors_as_arrays(outputs)]).tobytes(),
            give=lambda told: list(map(tf.constant, _arrays(told), dtypes)),
            is_step=lambda _: self._trains[function.name],
        )

    def step(self, call: Callable[[], Any]) -> Any:
        """Return what eager lines that became a step gave; None if they run as they are written."""
        if self.line is None or not self._is_asked:
            return call()
        return self._event("step", f"at line {user_line()}", call, is_step=lambda v: v is not None)

    def _evaluate(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.line is None or not self._is_asked:
            return original(*args, **kwargs)
        data = kwargs.get("x", args[1] if len(args) > 1 else None)
        if hasattr(data, "__next__"):
            raise self.not_resumable(f"{original.__name__} takes its batches from a generator")
        if self.waiting and isinstance(data, tf.data.Dataset):
            # The next pass over a shuffle that it has draws its seeds behind those of this one.
            iter(data)
        return self._event("call", original.__name__, lambda: original(*args, **kwargs))

    def _read(self, variable: tf.Variable) -> None:
        if self.line is None or is_of_evener(variable) or not self._is_asked:
            return

        def keep(array: np.ndarray) -> bytes:
            data = pack([[array]]).tobytes()
            known, before = self._last_read.get(id(variable), (lambda: None, 0))
            now = zlib.crc32(data)
            self._last_read[id(variable)] = weakref.ref(variable), now
            return b"" if known() is variable and before == now else data

        def give(told: bytes) -> None:
            if told:
                variable.assign(*_arrays(told))

        self._event("read", variable.name, lambda: packable(variable), keep=keep, give=give)

    def _write(self, name: str, _: Any, action: Callable[[], Any]) -> Any:
        # The path is left out: it may be a temporary one.
        if self.line is None or not self._is_asked:
            return action()

        def keep(value: Any) -> bytes:
            try:
                return _encode(_plain(value))
            except TypeError:
                return _encode(None)

        return self._event("write", name, action, keep=keep)

    def _check_there(self, name: str, _: Any, *, is_there: bool) -> None:
        key = f"{name}, which {'is' if is_there else 'is not'} there"
        if self.line is None:
            self._loads.append(key)
        elif self._is_asked:
            self._event("load", key, lambda: None)

    def _event(
        self,
        kind: str,
        key: str,
        act: Callable[[], Any],
        *,
        keep: Callable[[Any], bytes] = lambda value: _encode(_plain(value)),
        give: Callable[[bytes], Any] = lambda told: _value(msgspec.msgpack.decode(told)),
        is_step: Callable[[Any], bool] = lambda _: False,
    ) -> Any:
        """Let an event happen and keep it, or tell what it was in the run that is resumed."""
        told = self.waiting.popleft() if self.waiting else None
        if told is not None and (told.kind, told.key) != (kind, key):
            found = _as_text(Event(kind, key, b""))
            is_batch = kind == "run" and _as_text(told) == found
            raise self._other_program(_as_text(told), "other values there" if is_batch else found)
        draws = told is None and kind not in ("run", "read")
        before = random_state.read() if draws else None
        with self._inside():
            if told is not None:
                value, event = give(told.told), told
            else:
                value = act()
                after = random_state.read() if draws else None
                try:
                    kept = keep(value)
                except (NotImplementedError, TypeError) as error:
                    raise self.not_resumable(f"{key} gives what cannot be kept: {error}") from error
                event = Event(kind, key, kept, None if after == before else after)
        if self._kept is not None:
            self._kept.append(event)
            self._num_bytes += len(event.told) + len(event.key)
        self._num_steps += is_step(value)
        if told is not None and told.random is not None:
            random_state.restore(told.random)
        if told is not None and not self.waiting:
            self._restore()
        if told is None and is_step(value):
            self.has_computed = True
            stops = self._termination.is_requested
            if self._every_steps is None:
                is_due = time.monotonic() - self._saved_at >= SECONDS
            else:
                is_due = self._num_steps % self._every_steps == 0
            if is_due or stops:
                self._save()
            if stops:
                self._checkpoint.wait()
                self._termination.act()
        if self._num_bytes > LIMIT_BYTES and not self.waiting and self._kept is not None:
            self._save()
            self._kept = None
            self._notes.add(
                f"--checkpoint keeps this loop up to step {self._num_steps} only: what its steps "
                f"return, and the variables that are read between them, take more than "
                f"{LIMIT_BYTES >> 20} MiB",
                self.line,
            )
        return value

    # Checkpoints.

    def _restore(self) -> None:
        """Assign the variables of the checkpoint, whose last event has just been told."""
        loaded, self._loaded = self._loaded, None
        assert loaded is not None
        if random_state.read() != loaded.state["random"]:
            raise self._other_program("other random numbers", "its own")
        self._checkpoint.wanted = frozenset(spec.path for spec in loaded.specs)
        with self._inside():
            self._checkpoint.assign(loaded)
        self._checkpoint.wanted = None
        self._saved_at = time.monotonic()

    def _save(self) -> None:
        if self._kept is None:
            return
        self._saved_at = time.monotonic()
        with self._inside():
            events = zlib.compress(msgspec.msgpack.encode(self._kept), 1)
            self._checkpoint.write(
                Position(step=self._num_steps),
                {"loop": {"loads": self._loads}},
                {"events": np.frombuffer(events, np.uint8)},
            )

    @contextlib.contextmanager
    def _inside(self) -> Generator[None]:
        """Do what is no part of the program, and seen by no observer of it."""
        observer = sys.getprofile()
        sys.setprofile(None)
        self.is_inside = True
        try:
            yield
        finally:
            self.is_inside = False
            sys.setprofile(observer)

    # Errors.

    def not_resumable(self, why: str) -> CheckpointError:
        return CheckpointError(
            "CKPT-018",
            f"The training loop at {self.line or user_line()} cannot be resumed.",
            why=f"{why}.",
            fix="Leave out --checkpoint, or save and restore in the loop (evener.Checkpoint).",
        )

    def _other_program(self, first: str, now: str) -> CheckpointError:
        return CheckpointError(
            "CKPT-021",
            f"The training loop at {self.line} does otherwise than in the run that is resumed.",
            why=f"Behind step {self._num_steps}, that run had {first}; this one has {now}.",
            fix="Make data and files as that run did: --checkpoint repeats the seeds of Python, "
            "NumPy and TensorFlow, not the order of a set or the time. A script that restores its "
            "own checkpoints needs no others. Or name a new folder.",
        )


class KeptHoister:
    """Steps that were made of eager lines, as events of a loop."""

    def __init__(self, hoister: Hoister, loop: ResumableLoop) -> None:
        self._hoister, self._loop = hoister, loop

    def __call__(self, number: int, body: Any, read: Any) -> Any:
        # Of a step that is told, nothing says that its lines run as written.
        self._hoister.num_begun += bool(self._loop.waiting)
        return self._loop.step(lambda: self._hoister(number, body, read))

    @contextlib.contextmanager
    def as_written(self, number: int) -> Generator[None]:
        before, self._loop.is_as_written = self._loop.is_as_written, True
        try:
            with self._hoister.as_written(number):
                yield
        finally:
            self._loop.is_as_written = before


def _as_text(event: Event) -> str:
    """Return an event for a message; the key of a run ends with checksums of its batch."""
    if event.kind == "run":
        return f"a call of {event.key.partition('(')[0]}"
    return f"a read of {event.key}" if event.kind == "read" else event.key


# Values of events as bytes.

_encode = msgspec.msgpack.encode


def _arrays(packed: bytes) -> list[np.ndarray]:
    [arrays] = unpack(np.frombuffer(packed, np.uint8))
    return arrays


def _plain(value: Any) -> Any:
    """Return a nest of tensors, arrays and numbers as msgpack has it; TypeError for the rest."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        kind = "array" if isinstance(value, np.ndarray) else "number"
        return {"kind": kind, "items": pack([[np.asarray(value)]]).tobytes()}
    if isinstance(value, _PLAIN):
        return value
    items: Any = value
    if type(value) in (list, tuple):
        return {"kind": type(value).__name__, "items": [*map(_plain, items)]}
    if type(value) is dict and all(type(key) is str for key in items):
        return {"kind": "dict", "items": [[key, _plain(each)] for key, each in items.items()]}
    if isinstance(value, tf.Tensor) and value.dtype not in (tf.resource, tf.variant):
        return {"kind": f"tensor {value.dtype.name}", "items": pack([[packable(value)]]).tobytes()}
    raise TypeError(f"{type(value).__name__} is no tensor and no number")


def _value(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    kind, items = plain["kind"], plain["items"]
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(map(_value, items))
    if kind == "dict":
        return {key: _value(each) for key, each in items}
    [array] = _arrays(items)
    if kind.startswith("tensor "):
        return tf.constant(array, tf.as_dtype(kind.removeprefix("tensor ")))
    return array if kind == "array" else array[()]


def checksum(array: np.ndarray) -> str:
    """Return the type, the shape and a checksum of an array; of a large one, of parts."""
    rows = array.reshape(array.shape[0] if array.ndim else 1, -1) if array.size else array
    step = max(1, array.nbytes // _SAMPLE_BYTES)
    sample = np.ascontiguousarray(rows[::step])
    data = repr(sample.tolist()).encode() if sample.dtype.hasobject else sample.tobytes()
    return f"{array.dtype} {array.shape} {zlib.crc32(data):08x}"
