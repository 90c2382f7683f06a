"""Folders of checkpoints: names, temporary folders, removal.

A checkpoint is written to a temporary folder beside its place, and renamed when it is complete:

    .tmp-step-00001234-8161/   -->   step-00001234/

Object stores (``gs://``) rename no folders at once. There the files are written in place. In both
cases ``DONE`` is written last, and a folder without it is no checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

import tensorflow as tf

DONE = "DONE"
_NAME = re.compile(r"step-(\d{8,})/?")
_TEMPORARY = ".tmp-"
_REPLACED = ".old-"


def is_remote(path: str) -> bool:
    """Return whether a path is in an object store, such as ``gs://bucket/run``."""
    return "://" in path


def join(folder: str, name: str) -> str:
    """Return the path of a name in a folder."""
    return f"{folder.rstrip('/')}/{name}" if is_remote(folder) else os.path.join(folder, name)  # noqa: PTH118


def name_of(step: int) -> str:
    """Return the name of the folder of a step, such as ``"step-00001234"``."""
    return f"step-{step:08d}"


def whole_names(path: str) -> list[str]:
    """Return the names of all complete checkpoints of a folder, by their steps.

    Args:
        path: Folder of the checkpoints; it need not exist.
    """
    if not tf.io.gfile.isdir(path):
        return []
    found = [entry.rstrip("/") for entry in tf.io.gfile.listdir(path) if _NAME.fullmatch(entry)]
    whole = [name for name in found if tf.io.gfile.exists(join(join(path, name), DONE))]
    return sorted(whole, key=lambda name: int(name.removeprefix("step-")))


@contextlib.contextmanager
def replacing(path: str, name: str) -> Iterator[str]:
    """Yield a folder to write into; at the end of the block it becomes the checkpoint.

    If the block fails, what it has written is removed, and an older checkpoint of this name stays.

    Args:
        path: Folder of the checkpoints.
        name: Name of the checkpoint.
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
    if not tf.io.gfile.isdir(path):
        return
    for entry in tf.io.gfile.listdir(path):
        if entry.startswith((_TEMPORARY, _REPLACED)):
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
