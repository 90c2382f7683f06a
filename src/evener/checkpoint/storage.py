"""Folders of checkpoints, and the files of one checkpoint: names, locks, writing, verification.

    file                                  contents
    variables.index, variables.data-...   all variables, for `tf.train.Checkpoint(...).restore`
    model.weights.h5                      weights, for ``model.load_weights`` of Keras
    state.json                            everything else, with checksums of all values and files
    DONE                                  nothing; written last

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
import hashlib
import json
import logging
import operator
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from evener._tf_private.models import save_only_weights
from evener._tf_private.tensors import aligned_copy, as_tensor
from evener.base.records import from_plain
from evener.checkpoint import random_state
from evener.checkpoint.variables import (
    COUNTER_KEY,
    GRAPH_KEY,
    Count,
    ProgramVariables,
    VariableSpec,
)

DONE = "DONE"
_TEMPORARY = ".tmp-"
_REPLACED = ".old-"
# Also one that was about to be replaced: its process ended before the new one had its name.
_NAME = re.compile(r"step-(\d{8,})|\.old-step-(\d{8,})-\d+")
_LOG = logging.getLogger("evener")
R = TypeVar("R")


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
    return f"{folder.rstrip('/')}/{name}" if is_remote(folder) else os.path.join(folder, name)  # noqa: PTH118


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def names_in(path: str) -> list[str]:
    """Return the names of all checkpoints of a folder, by their steps."""
    if not tf.io.gfile.isdir(path):
        return []
    entries = [entry.rstrip("/") for entry in tf.io.gfile.listdir(path)]
    found = {name: match for name in entries if (match := _NAME.fullmatch(name))}
    return sorted(found, key=lambda name: (int(found[name][1] or found[name][2]), name))


def whole_names(path: str) -> list[str]:
    return [name for name in names_in(path) if tf.io.gfile.exists(join(join(path, name), DONE))]


@contextlib.contextmanager
def replacing(path: str, name: str) -> Generator[str]:
    """Yield a folder to write into; at the end of the block it becomes the checkpoint."""
    final = join(path, name)
    if is_remote(path):
        if tf.io.gfile.exists(final):
            tf.io.gfile.rmtree(final)
        tf.io.gfile.makedirs(final)
        yield final
        write_text(join(final, DONE), "1\n")
        return
    temporary = join(path, f"{_TEMPORARY}{name}-{os.getpid()}")
    replaced = join(path, f"{_REPLACED}{name}-{os.getpid()}")
    tf.io.gfile.makedirs(temporary)
    try:
        yield temporary
        write_text(join(temporary, DONE), "1\n")
        for entry in os.listdir(temporary):  # noqa: PTH208
            _sync(join(temporary, entry))
        _sync(temporary)
        # A folder that is not empty cannot be renamed upon.
        if os.path.isdir(final):  # noqa: PTH112
            os.rename(final, replaced)  # noqa: PTH104
        os.rename(temporary, final)  # noqa: PTH104
        if os.path.isdir(replaced):  # noqa: PTH112
            tf.io.gfile.rmtree(replaced)
        _sync(path)
    except BaseException:
        with contextlib.suppress(tf.errors.OpError, OSError):
            tf.io.gfile.rmtree(temporary)
        raise


def write_text(path: str, text: str) -> None:
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(text)


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


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Files of one checkpoint.

PREFIX = "variables"
WEIGHTS = "model.weights.h5"
STATE = "state.json"
FORMAT = 2
_UNREADABLE = (tf.errors.OpError, OSError, TypeError, ValueError)
Check = Callable[[Mapping[str, Any]], Any]
"""Function that returns what further entries of a state are, or raises `DamagedError`."""


class DamagedError(Exception):
    """Damage of a checkpoint: a file is missing, torn, or has other bytes than were written."""


class UnknownFormatError(Exception):
    """Format of another version of evener."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredVariable(VariableSpec):
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredPosition:
    step: Count
    epoch: Count
    position: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredState:
    """Entries of every state; programs and callbacks add theirs."""

    format: Count
    versions: dict[str, str]
    position: _StoredPosition
    random: dict[str, Any]
    plan: dict[str, Any] | None
    shares: tuple[float, ...] | None
    files: dict[str, str]
    variables: tuple[_StoredVariable, ...]
    arrays: tuple[_StoredVariable, ...]


def read_record(value: Any, kind: type[R], where: str) -> R:
    """Return a record of a state; `DamagedError` if it is not as it was written."""
    try:
        return from_plain(value, kind, place=where, complete=True)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DamagedError(f"{STATE} is not as it was written: {error!s:.200}") from error


def check_random(state: Any) -> None:
    """Refuse states of random generators that cannot be put back."""
    try:
        is_right = random_state.check(state)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DamagedError(f"{STATE}: random states are not as written: {error!r:.100}") from error
    if not is_right:
        raise DamagedError(f"{STATE}: random states are not as written")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """State of a training at one moment, on the host."""

    variables: ProgramVariables
    values: Sequence[np.ndarray]
    state: Mapping[str, Any]
    model: keras.Model | None = None
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    name: str
    specs: tuple[VariableSpec, ...]
    values: tuple[np.ndarray, ...]
    arrays: Mapping[str, np.ndarray]
    state: Mapping[str, Any]
    more: Any  # what the check of further entries has returned


def copy_values(
    variables: ProgramVariables, buffers: Sequence[np.ndarray] | None = None
) -> list[np.ndarray]:
    """Copy the values of variables to the host, into buffers of an earlier call where they fit."""
    copies: list[np.ndarray] = []
    for index, item in enumerate(variables.named):
        variable = item.variable
        value = variable.value if isinstance(variable, keras.Variable) else variable
        array = np.asarray(value.numpy())
        buffer = array if buffers is None else buffers[index]
        is_as_before = buffer.shape == array.shape and buffer.dtype == array.dtype
        if buffers is not None and buffer.ndim > 0 and is_as_before:
            np.copyto(buffer, array)
            copies.append(buffer)
        else:
            copies.append(aligned_copy(array))
    return copies


def write(folder: str, contents: Contents) -> None:
    arrays = [
        VariableSpec(path=name, shape=each.shape, dtype=each.dtype.name, key=f"evener/{name}")
        for name, each in contents.arrays.items()
    ]
    specs = [*(item.spec for item in contents.variables.named), *arrays]
    values = [*contents.values, *contents.arrays.values()]
    with tf.device("cpu:0"):
        tensors = [as_tensor(value) for value in values]
        counter = tf.constant(contents.state["position"]["step"], tf.int64)
        tf.raw_ops.SaveV2(
            prefix=join(folder, PREFIX),
            tensor_names=[*(spec.key for spec in specs), COUNTER_KEY, GRAPH_KEY],
            shape_and_slices=[""] * (len(specs) + 2),
            tensors=[*tensors, counter, tf.constant(contents.variables.graph)],
        )
        if contents.model is not None:
            _write_weights(folder, contents, contents.model)
    entries = [
        {**asdict(spec), "sha256": _checksum(value)}
        for spec, value in zip(specs, values, strict=True)
    ]
    count = len(contents.values)
    files = {name: _file_checksum(join(folder, name)) for name in _files_in(folder)}
    lists = {"files": files, "variables": entries[:count], "arrays": entries[count:]}
    write_state(folder, {**contents.state, **lists})


def write_state(folder: str, state: dict[str, Any]) -> None:
    """Write the state of a checkpoint, with its checksum."""
    text = json.dumps({"format": FORMAT, **state}, indent=1, sort_keys=True)
    envelope = {"checksum": _text_checksum(text), "state": json.loads(text)}
    write_text(join(folder, STATE), json.dumps(envelope, indent=1, sort_keys=True))


def _write_weights(folder: str, contents: Contents, model: keras.Model) -> None:
    of_model = {id(variable) for variable in model.variables}
    copied = [
        (item.variable, value)
        for item, value in zip(contents.variables.named, contents.values, strict=True)
        if id(item.variable) in of_model
    ]
    # The model trains on meanwhile: in this thread, its variables have the copied values.
    with keras.StatelessScope(state_mapping=copied):
        if not is_remote(folder):
            save_only_weights(model, join(folder, WEIGHTS))
            return
        # HDF5 writes to local files alone.
        with tempfile.TemporaryDirectory() as local:
            save_only_weights(model, join(local, WEIGHTS))
            tf.io.gfile.copy(join(local, WEIGHTS), join(folder, WEIGHTS))


def read(folder: str, name: str, check_more: Check) -> Loaded:
    if not tf.io.gfile.exists(join(folder, DONE)):
        raise DamagedError("its marker is missing")
    state, stored = _read_state(folder)
    more = check_more(state)
    entries = [*stored.variables, *stored.arrays]
    try:
        files = {name: _file_checksum(join(folder, name)) for name in _files_in(folder)}
        wrong = [name for name, _ in files.items() ^ stored.files.items()]
        if wrong:
            raise DamagedError(f"{min(wrong)} is missing, or has another checksum than was written")
        with tf.device("cpu:0"):
            tensors = tf.raw_ops.RestoreV2(
                prefix=join(folder, PREFIX),
                tensor_names=[entry.key for entry in entries],
                shape_and_slices=[""] * len(entries),
                dtypes=[tf.as_dtype(entry.dtype) for entry in entries],
            )
        values = [tensor.numpy() for tensor in tensors]
        for entry, value in zip(entries, values, strict=True):
            if (value.shape, _checksum(value)) != (entry.shape, entry.sha256):
                raise DamagedError(f"variable {entry.path} has another checksum or shape")
    except _UNREADABLE as error:
        raise DamagedError(f"the files {PREFIX}.* cannot be read: {error}") from error
    count = len(stored.variables)
    return Loaded(
        name=name,
        specs=stored.variables,
        values=tuple(values[:count]),
        arrays={s.path: v for s, v in zip(stored.arrays, values[count:], strict=True)},
        state=state,
        more=more,
    )


def _read_state(folder: str) -> tuple[dict[str, Any], _StoredState]:
    try:
        with tf.io.gfile.GFile(join(folder, STATE), "r") as file:
            envelope = json.loads(file.read())
        checksum, state = envelope["checksum"], envelope["state"]
        is_same = checksum == _text_checksum(json.dumps(state, indent=1, sort_keys=True))
        if is_same and state["format"] != FORMAT:
            number = operator.index(state["format"])
            raise UnknownFormatError(f"format {number}, and {FORMAT} is known")
        names = {each.name for each in fields(_StoredState)}
        own = {name: value for name, value in state.items() if name in names}
    except (*_UNREADABLE, AttributeError, LookupError, RecursionError) as error:
        raise DamagedError(f"{STATE} cannot be read: {error}") from error
    if not is_same:
        raise DamagedError(f"{STATE} has another checksum than was written")
    stored = read_record(own, _StoredState, "state")
    check_random(stored.random)
    return state, stored


def _files_in(folder: str) -> list[str]:
    names = tf.io.gfile.listdir(folder)
    return sorted(name for name in names if name == WEIGHTS or name.startswith(f"{PREFIX}."))


def _file_checksum(path: str) -> str:
    digest = hashlib.sha256()
    with tf.io.gfile.GFile(path, "rb") as file:
        while piece := file.read(1 << 24):
            digest.update(piece)
    return digest.hexdigest()


def _checksum(value: np.ndarray) -> str:
    contiguous = np.ascontiguousarray(value)
    return hashlib.sha256(contiguous.reshape(-1).view(np.uint8).data).hexdigest()


def _text_checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
