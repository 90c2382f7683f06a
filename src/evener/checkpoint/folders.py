"""Folders of checkpoints: names, temporary folders, removal.

A checkpoint is written to a temporary folder beside its place, and renamed when it is complete:

    .tmp-step-00001234-8161/   -->   step-00001234/

Object stores (``gs://``) rename no folders at once. There the files are written in place. In both
cases ``DONE`` is written last, and a folder without it is no checkpoint.

One job at a time writes to a folder: it has a lock of the system on the file ``.lock``. The system
opens the lock when the process ends, however it does.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import weakref
from collections.abc import Iterator

import tensorflow as tf

DONE = "DONE"
_TEMPORARY = ".tmp-"
_REPLACED = ".old-"
# Also one that was about to be replaced: its process ended before the new one had its name.
_NAME = re.compile(r"step-(\d{8,})|\.old-step-(\d{8,})-\d+")
_LOG = logging.getLogger("evener")


class LockedError(Exception):
    """Lock of a folder that another job has; the text says which."""


class FolderLock:
    """Lock of a folder, held as long as this object is there."""

    def __init__(self, descriptor: int) -> None:
        close = weakref.finalize(self, os.close, descriptor)
        # A child that outlives this process would keep the lock.
        os.register_at_fork(after_in_child=close)


_locks: weakref.WeakValueDictionary[str, FolderLock] = weakref.WeakValueDictionary()


def lock(path: str, job: str) -> FolderLock | None:
    """Lock a folder for this process, which may lock it again."""
    if is_remote(path):
        return None
    real = os.path.realpath(path)
    if (held := _locks.get(real)) is not None:
        return held
    tf.io.gfile.makedirs(path)
    descriptor = os.open(join(path, ".lock"), os.O_RDWR | os.O_CREAT, 0o666)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 1000, 0).decode(errors="replace")
            if holder != job:
                raise LockedError(holder) from None
            return None
        except OSError as error:
            _LOG.warning("%s cannot be locked, so that two jobs may write there: %s", path, error)
            return None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, job.encode(), 0)
        stack.pop_all()
    _locks[real] = held = FolderLock(descriptor)
    return held


def is_remote(path: str) -> bool:
    """Return whether a path is in an object store, such as ``gs://bucket/run``."""
    return "://" in path


def join(folder: str, name: str) -> str:
    """Return the path of a name in a folder."""
    return f"{folder.rstrip('/')}/{name}" if is_remote(folder) else os.path.join(folder, name)  # noqa: PTH118


def name_of(step: int) -> str:
    """Return the name of the folder of a step, such as ``"step-00001234"``."""
    return f"step-{step:08d}"


def is_whole(folder: str) -> bool:
    """Return whether a folder is that of a complete checkpoint."""
    return tf.io.gfile.exists(join(folder, DONE))


def names_in(path: str) -> list[str]:
    """Return the names of all checkpoints of a folder, by their steps."""
    if not tf.io.gfile.isdir(path):
        return []
    entries = [entry.rstrip("/") for entry in tf.io.gfile.listdir(path)]
    found = {name: match for name in entries if (match := _NAME.fullmatch(name))}
    return sorted(found, key=lambda name: (int(found[name][1] or found[name][2]), name))


def whole_names(path: str) -> list[str]:
    """Return the names of all complete checkpoints of a folder; see `names_in`."""
    return [name for name in names_in(path) if is_whole(join(path, name))]


@contextlib.contextmanager
def replacing(path: str, name: str) -> Iterator[str]:
    """Yield a folder to write into; at the end of the block it becomes the checkpoint.

    If the block fails, what it has written is removed, and an older checkpoint of this name stays.
    """
    final = join(path, name)
    if is_remote(path):
        if tf.io.gfile.exists(final):
            tf.io.gfile.rmtree(final)
        tf.io.gfile.makedirs(final)
        yield final
        _write_done(final)
        return
    temporary = join(path, f"{_TEMPORARY}{name}-{os.getpid()}")
    tf.io.gfile.makedirs(temporary)
    try:
        yield temporary
        _write_done(temporary)
        _sync_folder(temporary)
        _rename(temporary, final, replaced=join(path, f"{_REPLACED}{name}-{os.getpid()}"))
        _sync(path)
    except BaseException:
        with contextlib.suppress(tf.errors.OpError, OSError):
            tf.io.gfile.rmtree(temporary)
        raise


def remove(path: str, name: str) -> None:
    """Remove a checkpoint; its ``DONE`` first, so that it is never taken for a whole one."""
    folder = join(path, name)
    marker = join(folder, DONE)
    if tf.io.gfile.exists(marker):
        tf.io.gfile.remove(marker)
    tf.io.gfile.rmtree(folder)


def remove_remains(path: str) -> None:
    """Remove temporary folders of processes that ended while they wrote."""
    for entry in tf.io.gfile.listdir(path):
        final = join(path, entry.removeprefix(_REPLACED).rpartition("-")[0])
        if entry.startswith(_REPLACED) and not tf.io.gfile.exists(final):
            tf.io.gfile.rename(join(path, entry), final)
        elif entry.startswith((_TEMPORARY, _REPLACED)):
            tf.io.gfile.rmtree(join(path, entry))


def _rename(temporary: str, final: str, *, replaced: str) -> None:
    # A folder that is not empty cannot be renamed upon.
    if os.path.isdir(final):  # noqa: PTH112
        os.rename(final, replaced)  # noqa: PTH104
    os.rename(temporary, final)  # noqa: PTH104
    if os.path.isdir(replaced):  # noqa: PTH112
        tf.io.gfile.rmtree(replaced)


def _write_done(folder: str) -> None:
    with tf.io.gfile.GFile(join(folder, DONE), "w") as file:
        file.write("1\n")


def _sync_folder(folder: str) -> None:
    for entry in os.listdir(folder):  # noqa: PTH208
        _sync(join(folder, entry))
    _sync(folder)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
