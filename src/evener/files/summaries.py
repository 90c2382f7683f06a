"""Event files of `tf.summary`: the chief's are in the log folder, the others' in temporary folders.

The graph of a step is the same on all workers, with the operations that write summaries. If the
chief dies, the next one adds to the log folder what it has written and is not there, and goes on.
"""

from __future__ import annotations

import atexit
import collections
import os
import shutil
import socket
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from evener.files.once import Once, Workers

_PATTERN = "*tfevents*"


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Writer of a worker that is not the chief."""

    logdir: str  # Folder that the program names.
    folder: str  # Folder that is written to instead.
    before: Sequence[str]  # Event files of the log folder that are older.
    resource: weakref.ref[Any]  # Resource of the writer, if it is still there.
    reopen: Callable[[Any, str], object]  # Lets the resource write to another folder.


class Summaries:
    """Folders of the summary writers of this worker."""

    def __init__(self, workers: Workers, once: Once) -> None:
        self._workers = workers
        self._once = once
        self._writers: list[_Writer] = []
        self._root: str | None = None

    def folder_of(self, resource: Any, logdir: str, reopen: Callable[[Any, str], object]) -> str:
        """Return the folder for a new summary writer.

        ``reopen`` lets the resource write to another folder from then on.
        """
        if self._once.waits:
            before = self._once.write("summaries", logdir, lambda: _event_files(logdir))
        else:
            before = _event_files(logdir)
        if self._is_chief:
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
        return None if self._is_chief else tempfile.mkdtemp(dir=self._folder())

    def take_over(self) -> None:
        """Write to the log folders from now on, if this worker has become the chief."""
        if not self._is_chief:
            return
        writers, self._writers = self._writers, []
        for writer in writers:
            resource = writer.resource()
            if resource is not None:
                tf.raw_ops.CloseSummaryWriter(writer=resource)
            add_missing_events(writer.folder, writer.logdir, writer.before)
            if resource is not None:
                writer.reopen(resource, writer.logdir)

    @property
    def _is_chief(self) -> bool:
        return self._workers.index == self._workers.chief and not self._workers.is_late

    def _folder(self) -> str:
        if self._root is None:
            self._root = tempfile.mkdtemp(prefix="evener-summaries-")
            # Behind all that the program does at its end, because it was registered before.
            atexit.register(shutil.rmtree, self._root, ignore_errors=True)
        return self._root


def add_missing_events(source: str, target: str, older: Iterable[str] = ()) -> None:
    """Write the events of a folder that are not in another one to a new file there.

    The last event of a file of another worker may be torn. Files of ``older`` do not count.
    """
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
    """Yield the events of a file, up to one that is torn."""
    try:
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            yield tf.compat.v1.Event.FromString(record)
    except tf.errors.DataLossError:
        return


def _name(event: Any) -> tuple[Any, ...]:
    """Return the key of an event: its kind, step and tags."""
    tags = tuple(value.tag for value in event.summary.value)
    return (event.WhichOneof("what"), event.step, tags)
