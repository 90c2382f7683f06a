"""Files that a program of several workers writes once: models, checkpoints, logs, summaries.

::

    worker 0   ──► arrives ┐              ┌─► writes ──► tells ┐
    worker 1   ──► arrives ┼─► all there ─┼──────────────waits ┼─► whole: all go on
    worker 2   ──► arrives ┘              └──────────────waits ┘

Nothing is written before all workers are there: another one may still read the file that is
replaced. If the worker that writes dies, the next one writes.

All workers run the same program, which is written for one device: one of them writes each file, and
the others wait for it and raise its errors too. Text files and event files of `tf.summary` are kept
by all, so that the next worker can go on if the one that writes dies.
"""

from __future__ import annotations

import atexit
import builtins
import collections
import functools
import io
import json
import os
import shutil
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import tensorflow as tf

from evener._tf_private import workers as private
from evener.checkpoint import random_state
from evener.errors import RunError
from evener.workers.group import Group

R = TypeVar("R")
Told = dict[str, Any]
"""Error as JSON has it."""
_WRITE_SECONDS = 3600.0
_PATTERN = "*tfevents*"
_groups: list[Group] = []


def error_to_json(error: Exception) -> Told:
    told: Told = {"type": type(error).__name__, "text": str(error)}
    if isinstance(error, OSError) and error.errno is not None:
        name = None if error.filename is None else str(error.filename)
        told["os"] = [error.errno, error.strerror, name]
    elif isinstance(error, tf.errors.OpError):
        failed: Any = error
        told["op"] = [failed.error_code, failed.message]
    return told


def error_from_json(told: Told, worker: int) -> Exception:
    """Return the error that another worker raised, as `error_to_json` described it."""
    if "os" in told:
        return OSError(*told["os"])
    if "op" in told:
        code, message = told["op"]
        return tf.compat.v1.errors.exception_type_from_error_code(code)(None, None, message)
    kind = getattr(builtins, told["type"], None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        takes_more = UnicodeError | ImportError | SyntaxError | ExceptionGroup
        if not issubclass(kind, takes_more):
            return kind(told["text"])
    return RunError(
        "RUN-097",
        f"Worker {worker} cannot write a file: {told['type']}: {told['text']}",
        why="With several workers, one of them writes each file, and the others wait for it.",
        fix=f"See the output of worker {worker}.",
    )


class Claim:
    """Right to write a file: one of the workers that name the same path has it.

    Workers whose paths differ, such as those in temporary folders, each write their own file.
    ``paths`` has the paths that all workers have named, by the number of the worker.
    """

    def __init__(self, workers: Group, path: str, paths: dict[int, str]) -> None:
        self._workers = workers
        self._others = frozenset(index for index, named in paths.items() if named != path)

    @property
    def writer(self) -> int | None:
        """Number of the worker that writes; None for a file that only this late worker names."""
        # Those who were no members then have named nothing; their program is the same.
        there = {*self._workers.view.members} - self._others
        if self._workers.chief in there:
            return self._workers.chief
        return min(there, default=None)

    @property
    def is_mine(self) -> bool:
        """Whether this worker writes the file. The writer may die, so ask it again."""
        return not self._workers.is_late and self.writer == self._workers.index


class Once:
    """Writes once what all workers of a job write.

    Workers wait for each other in the thread that makes this. In other threads, which run at their
    own pace, the chief writes and the others do not.
    """

    def __init__(self, workers: Group) -> None:
        self._workers = workers
        self._thread = threading.get_ident()
        self._local = threading.local()

    def write(self, name: str, path: str | os.PathLike[str], action: Callable[[], R]) -> R | Any:
        """Let one worker write a file, and wait until it is whole.

        The name is the same on all workers. Another worker calls the action again if the writer
        dies. Returns the value of the action; on the workers that have not written, the value of
        the writer if JSON has it, else None. An error of the action is raised on all workers;
        RUN-098 if a worker does not come to the same write.
        """
        if not self.waits:
            return action() if self.writes_alone else None
        return self._written(name, self.claim(name, path), action)

    def claim(self, name: str, path: str | os.PathLike[str]) -> Claim:
        """Return the right to write a file, when all have asked; RUN-098 if one does not."""
        own = full_path(path)
        told = self._exchange(f"before {name}", [self._workers.index, own])
        return Claim(self._workers, own, dict(told))

    def finish(self, name: str, claim: Claim, action: Callable[[], R]) -> R | Any:
        """Let the worker that has a claim act, and wait for it; see `write`."""
        return action() if self._is_writing else self._written(name, claim, action)

    def check_there(self, name: str, path: str | os.PathLike[str], *, is_there: bool) -> None:
        """Raise RUN-099 if a file that is about to be read is there for some workers only."""
        if self._is_writing or threading.get_ident() != self._thread:
            return
        own = full_path(path) if is_there else None
        paths = dict(self._exchange(f"before {name}", [self._workers.index, own]))
        there = [index for index, path in paths.items() if path is not None]
        without = [index for index in paths if index not in there]
        if there and without:
            names = ", ".join(map(str, without))
            raise RunError(
                "RUN-099",
                f"Worker {there[0]} finds {paths[there[0]]}, and worker {names} does not.",
                why="One worker writes each file, so the others can only read it from a file "
                "system that their machines have in common.",
                fix="Write to a folder that all machines have in common, such as NFS or gs://.",
            )

    @property
    def waits(self) -> bool:
        """Whether a write of this thread is one for which the workers wait."""
        is_home = threading.get_ident() == self._thread and tf.executing_eagerly()
        return is_home and not self._is_writing

    @property
    def writes_alone(self) -> bool:
        """Whether this worker writes where the workers do not wait for each other."""
        return self._is_writing or self.is_chief

    @property
    def is_chief(self) -> bool:
        return self._workers.index == self._workers.chief and not self._workers.is_late

    @property
    def _is_writing(self) -> bool:
        return getattr(self._local, "is_writing", False)

    def _written(self, name: str, claim: Claim, action: Callable[[], R]) -> R | Any:
        # A worker that has written does not write again when another one dies meanwhile.
        values: list[R] = []
        failures: list[Exception] = []

        @functools.cache
        def act() -> dict[str, Any]:
            before = random_state.read()
            # Writes of the action are parts of this one.
            self._local.is_writing = True
            try:
                values.append(action())
            except Exception as error:
                failures.append(error)
                return {"error": error_to_json(error)}
            finally:
                self._local.is_writing = False
            after = random_state.read()
            told = {"value": values[0] if _is_json(values[0]) else None}
            # An export may draw seeds, which the others draw alike from now on.
            return told if after == before else {**told, "random": after}

        def own() -> list[Any]:
            return [self._workers.index, act() if claim.is_mine else None]

        told = dict(self._exchange(f"after {name}", own, timeout_seconds=_WRITE_SECONDS))
        if failures:
            raise failures[0]
        if values:
            return values[0]
        # The value of the writer, and its random states.
        writer: Any = claim.writer
        writers = [index for index, outcome in told.items() if outcome is not None]
        if writer not in writers:
            # A late worker with a path of its own, or one whose view is newer than what is told.
            writer = writers[0]
        outcome = told[writer]
        if "error" in outcome:
            raise error_from_json(outcome["error"], writer)
        if "random" in outcome:
            random_state.restore(outcome["random"])
        return outcome["value"]

    def _exchange(
        self, name: str, value: Any, *, timeout_seconds: float | None = None
    ) -> list[Any]:
        try:
            return self._workers.exchange(name, value, timeout_seconds=timeout_seconds)
        except RunError as error:
            if error.code != "RUN-069":
                raise
            what = name.removeprefix("before ").removeprefix("after ")
            raise RunError(
                "RUN-098",
                f"Not all workers come to {what}.",
                why=f"{error.what} With several workers one of them writes each file, and the "
                "others wait for it, so all of them have to call what writes.",
                fix="Remove conditions around it such as `if task_id == 0:`, or on the time; "
                "evener writes once by itself.",
            ) from error


def full_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a local file, or the path itself if it is remote."""
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)  # noqa: PTH100


def _is_json(value: Any) -> bool:
    try:
        return json.loads(json.dumps(value)) is not None
    except (TypeError, ValueError):
        return False


def open_text(once: Once, path: str, mode: str) -> Any:
    """Open a text file of all workers, which may be written to; the mode is ``"w"`` or ``"a"``."""
    if not once.waits:
        return tf.io.gfile.GFile(path, mode) if once.writes_alone else io.StringIO()

    def begin() -> str:
        is_kept = mode == "a" and tf.io.gfile.exists(path)
        with tf.io.gfile.GFile(path, mode) as file:
            # Makes the file.
            file.write("")
        if not is_kept:
            return ""
        with tf.io.gfile.GFile(path, "r") as file:
            return file.read()

    claim = once.claim("a text file", path)
    before = once.finish("the start of a text file", claim, begin)
    return SharedText(once, path, claim, before)


class SharedText(io.TextIOBase):
    """Text file that callbacks append to: one worker writes, the others keep the text.

    If the worker that writes dies, the next one has all that was written, and puts it into the
    file. So no line is lost, or there twice.
    ``before`` is the text that was in the file when it was opened, of a file that is appended to.
    """

    def __init__(self, once: Once, path: str, claim: Claim, before: str) -> None:
        super().__init__()
        self._once, self._path, self._claim = once, path, claim
        self._texts = [before]
        self._file: Any = None

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._texts.append(text)
        if self._file is not None:
            self._file.write(text)
        elif self._claim.is_mine:
            self._take()
        return len(text)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close the file; when all workers have, it is whole."""
        if self.closed:
            return
        super().close()

        def end() -> None:
            file = self._file or self._take()
            file.close()

        self._once.finish("the end of a text file", self._claim, end)

    def _take(self) -> Any:
        """Begin to write the file: what another worker has left of it is replaced."""
        self._file = tf.io.gfile.GFile(self._path, "w")
        self._file.write("".join(self._texts))
        return self._file


@dataclass(slots=True, kw_only=True)
class _Writer:
    logdir: str  # Folder that the program names.
    folder: str  # Folder that is written to instead.
    before: Sequence[str]  # Event files of the log folder that are older.
    resource: weakref.ref[Any]  # Resource of the writer, if it is still there.
    reopen: Callable[[Any, str], object]  # Lets the resource write to another folder.


class Summaries:
    """Folders of the summary writers of this worker: the log folder, or a temporary one.

    The graph of a step is the same on all workers, with the operations that write summaries. If the
    chief dies, the next one adds to the log folder what it has written and is not there, and goes
    on.
    """

    def __init__(self, once: Once) -> None:
        self._once = once
        self._writers: list[_Writer] = []
        self._root: str | None = None

    def choose_folder(
        self, resource: Any, logdir: str, reopen: Callable[[Any, str], object]
    ) -> str:
        if self._once.waits:
            before = self._once.write("summaries", logdir, lambda: _event_files(logdir))
        else:
            before = _event_files(logdir)
        if self._once.is_chief:
            return logdir
        folder = tempfile.mkdtemp(dir=self._folder())
        self._writers.append(
            _Writer(
                logdir=logdir,
                folder=folder,
                before=before,
                resource=weakref.ref(resource),
                reopen=reopen,
            )
        )
        return folder

    def folder_instead(self) -> str | None:
        """Return a new folder for output that nobody reads; None if this worker is the chief."""
        return None if self._once.is_chief else tempfile.mkdtemp(dir=self._folder())

    def take_over(self) -> None:
        """Write to the log folders from now on, if this worker has become the chief."""
        if not self._once.is_chief:
            return
        writers, self._writers = self._writers, []
        for writer in writers:
            resource = writer.resource()
            if resource is not None:
                tf.raw_ops.CloseSummaryWriter(writer=resource)
            add_missing_events(writer.folder, writer.logdir, writer.before)
            if resource is not None:
                writer.reopen(resource, writer.logdir)

    def _folder(self) -> str:
        if self._root is None:
            self._root = tempfile.mkdtemp(prefix="evener-summaries-")
            # Behind all that the program does at its end, because it was registered before.
            atexit.register(shutil.rmtree, self._root, ignore_errors=True)
        return self._root


def add_missing_events(source: str, target: str, older: Iterable[str] = ()) -> None:
    there = collections.Counter(
        _name(event) for path in set(_event_files(target)) - set(older) for event in _events(path)
    )
    missing: list[bytes] = []
    for path in sorted(_event_files(source)):
        for event in _events(path):
            name = _name(event)
            if there[name]:
                there[name] -= 1
            elif name[0] != "file_version":
                missing.append(event.SerializeToString())
    if not missing:
        return
    tf.io.gfile.makedirs(target)
    name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.taken.v2"
    version = tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2")
    with tf.io.TFRecordWriter(tf.io.gfile.join(target, name)) as file:
        for record in (version.SerializeToString(), *missing):
            file.write(record)


def _event_files(folder: str) -> list[str]:
    return tf.io.gfile.glob(tf.io.gfile.join(folder, _PATTERN))


def _events(path: str) -> Iterator[Any]:
    try:
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            yield tf.compat.v1.Event.FromString(record)
    except tf.errors.DataLossError:
        return


def _name(event: Any) -> tuple[Any, ...]:
    """Return the key of an event: its kind, step and tags."""
    tags = tuple(value.tag for value in event.summary.value)
    return (event.WhichOneof("what"), event.step, tags)


def write_files_once(workers: Group) -> None:
    """Let one worker write what Keras and TensorFlow write. Safe to call again."""
    if workers in _groups:
        return
    _groups.append(workers)
    once = Once(workers)
    summaries = Summaries(once)
    private.download_in_turn()
    private.write_once(once.write, once.check_there, lambda path, mode: open_text(once, path, mode))
    private.redirect_summaries(summaries.choose_folder, summaries.folder_instead)
    workers.keep_common(lambda: None, lambda state, view: summaries.take_over())
