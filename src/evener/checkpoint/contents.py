"""Files of one checkpoint: copied values of variables and the state, written and verified.

file                                  contents
variables.index, variables.data-...   all variables, for `tf.train.Checkpoint(...).restore`
model.weights.h5                      weights, for ``model.load_weights`` of Keras
state.json                            everything else, with checksums of all values and files
DONE                                  nothing; written last
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener._tf_private.models import save_only_weights
from evener.aligned import aligned_copy, as_tensor
from evener.checkpoint import random_state
from evener.checkpoint.folders import is_remote, is_whole, join
from evener.checkpoint.variables import COUNTER_KEY, GRAPH_KEY, ProgramVariables, VariableSpec

PREFIX = "variables"
WEIGHTS = "model.weights.h5"
STATE = "state.json"
FORMAT = 2
_UNREADABLE = (tf.errors.OpError, OSError, TypeError, ValueError)
Check = Callable[[Mapping[str, Any]], object]
"""Function that raises `DamagedError` if further entries of a state are wrong."""


class DamagedError(Exception):
    """Damage of a checkpoint: a file is missing, torn, or has other bytes than were written."""


class UnknownFormatError(Exception):
    """Format of another version of evener."""


def is_count(value: Any) -> bool:
    """Return whether a JSON value is a whole number from 0."""
    return type(value) is int and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number, a truth value or null, as attributes may be."""
    return value is None or isinstance(value, int | float)


def is_text(value: Any) -> bool:
    """Return whether a JSON value is a text."""
    return isinstance(value, str)


_ENTRY = {"path": is_text, "shape": [is_count], "dtype": is_text, "key": is_text, "sha256": is_text}
_STATE = {
    "versions": {str: is_text},
    "position": {"step": is_count, "epoch": is_count, "position": lambda value: True},
    "random": random_state.check,
    "plan": lambda value: value is None or isinstance(value, dict),
    "shares": lambda value: value is None or all(map(is_number, value)),
    "files": {str: is_text},
    "variables": [_ENTRY],
    "arrays": [_ENTRY],
}


def check(value: Any, kind: Any, where: str) -> None:
    """Check that a JSON value is of a kind; `DamagedError` if it is not, or lacks an entry.

    A kind is a function that returns whether a value is of it; a list with the kind of all items;
    or a dictionary with the kinds of entries, or with that of all entries under `str`.
    """
    try:
        if isinstance(kind, dict | list) and type(value) is not type(kind):
            raise TypeError(f"it is {value!r:.60}")
        if isinstance(kind, dict):
            for name in value if str in kind else kind:
                check(value[name], kind.get(name, kind.get(str)), f"{where}.{name}")
        elif isinstance(kind, list):
            for index, item in enumerate(value):
                check(item, kind[0], f"{where}[{index}]")
        elif not kind(value):
            raise ValueError(f"it is {value!r:.60}")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DamagedError(f"{STATE}: {where} is not as it was written: {error!r:.100}") from error


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
    """Whole checkpoint that was read and verified."""

    name: str
    specs: tuple[VariableSpec, ...]
    values: tuple[np.ndarray, ...]
    arrays: Mapping[str, np.ndarray]
    state: Mapping[str, Any]


def copied_values(
    variables: ProgramVariables, buffers: Sequence[np.ndarray] | None = None
) -> list[np.ndarray]:
    """Copy the values of variables to the host."""
    copies: list[np.ndarray] = []
    for index, item in enumerate(variables.named):
        value = _host_value(item.variable)
        if buffers is not None and _fits(buffers[index], value):
            np.copyto(buffers[index], value)
            copies.append(buffers[index])
        else:
            copies.append(aligned_copy(value))
    return copies


def _host_value(variable: Any) -> np.ndarray:
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return np.asarray(value.numpy())


def _fits(buffer: np.ndarray, value: np.ndarray) -> bool:
    return buffer.ndim > 0 and buffer.shape == value.shape and buffer.dtype == value.dtype


def write(folder: str, contents: Contents) -> None:
    """Write the files of a checkpoint."""
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
    with tf.io.gfile.GFile(join(folder, STATE), "w") as file:
        file.write(json.dumps(envelope, indent=1, sort_keys=True))


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
    """Read a checkpoint and verify all that it has."""
    if not is_whole(folder):
        raise DamagedError("its marker is missing")
    state = _read_state(folder)
    check_more(state)
    entries = [*state["variables"], *state["arrays"]]
    specs = [
        VariableSpec(path=e["path"], shape=tuple(e["shape"]), dtype=e["dtype"], key=e["key"])
        for e in entries
    ]
    try:
        files = {name: _file_checksum(join(folder, name)) for name in _files_in(folder)}
        wrong = [name for name, _ in files.items() ^ state["files"].items()]
        if wrong:
            raise DamagedError(f"{min(wrong)} is missing, or has another checksum than was written")
        with tf.device("cpu:0"):
            tensors = tf.raw_ops.RestoreV2(
                prefix=join(folder, PREFIX),
                tensor_names=[spec.key for spec in specs],
                shape_and_slices=[""] * len(specs),
                dtypes=[tf.as_dtype(spec.dtype) for spec in specs],
            )
        values = [tensor.numpy() for tensor in tensors]
        for spec, entry, value in zip(specs, entries, values, strict=True):
            if (value.shape, _checksum(value)) != (spec.shape, entry["sha256"]):
                raise DamagedError(f"variable {spec.path} has another checksum or shape")
    except _UNREADABLE as error:
        raise DamagedError(f"the files {PREFIX}.* cannot be read: {error}") from error
    count = len(state["variables"])
    return Loaded(
        name=name,
        specs=tuple(specs[:count]),
        values=tuple(values[:count]),
        arrays={s.path: v for s, v in zip(specs[count:], values[count:], strict=True)},
        state=state,
    )


def _read_state(folder: str) -> dict[str, Any]:
    try:
        with tf.io.gfile.GFile(join(folder, STATE), "r") as file:
            envelope = json.loads(file.read())
        checksum, state = envelope["checksum"], envelope["state"]
        is_same = checksum == _text_checksum(json.dumps(state, indent=1, sort_keys=True))
    except (*_UNREADABLE, LookupError, RecursionError) as error:
        raise DamagedError(f"{STATE} cannot be read: {error}") from error
    if not is_same:
        raise DamagedError(f"{STATE} has another checksum than was written")
    check(state, {"format": is_count}, "state")
    if state["format"] != FORMAT:
        raise UnknownFormatError(f"format {state['format']}, and {FORMAT} is known")
    check(state, _STATE, "state")
    return state


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
