"""Files of one checkpoint: copied values of variables, written and verified.

file                                  contents
variables.index, variables.data-...   all variables, for `tf.train.Checkpoint(...).restore`
model.weights.h5                      weights, for ``model.load_weights`` of Keras
state.json                            everything else, with the checksums of all values
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener import _tf_private
from evener.aligned import aligned_copy, as_tensor
from evener.checkpoint.folders import is_remote, join
from evener.checkpoint.object_graph import COUNTER_KEY, GRAPH_KEY
from evener.checkpoint.state_file import DamagedError, read_state, write_state
from evener.checkpoint.variables import ProgramVariables, VariableSpec

PREFIX = "variables"
WEIGHTS = "model.weights.h5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """State of a training at one moment, on the host.

    Attributes:
        variables: Variables that it was copied from.
        values: Values of the variables, in their order.
        state: Everything else, as JSON has it.
        model: Model whose weights are written for Keras as well; None for none.
    """

    variables: ProgramVariables
    values: Sequence[np.ndarray]
    state: Mapping[str, Any]
    model: keras.Model | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Whole checkpoint that was read and verified.

    Attributes:
        name: Name of its folder.
        specs: Variables.
        values: Values of the variables, in their order.
        state: Everything else, as JSON has it.
    """

    name: str
    specs: tuple[VariableSpec, ...]
    values: tuple[np.ndarray, ...]
    state: Mapping[str, Any]


def copied_values(
    variables: ProgramVariables, buffers: Sequence[np.ndarray] | None = None
) -> list[np.ndarray]:
    """Copy the values of variables to the host.

    Args:
        variables: Variables to copy.
        buffers: Arrays of an earlier copy, which are written over; None for new ones.
    """
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
    """Write the files of a checkpoint.

    Args:
        folder: Folder that exists.
        contents: State to write.
    """
    specs = [item.spec for item in contents.variables.named]
    with tf.device("cpu:0"):
        tensors = [as_tensor(value) for value in contents.values]
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
        {
            "path": spec.path,
            "shape": list(spec.shape),
            "dtype": spec.dtype,
            "key": spec.key,
            "sha256": _checksum(value),
        }
        for spec, value in zip(specs, contents.values, strict=True)
    ]
    write_state(folder, {**contents.state, "variables": entries})


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
            _tf_private.models.save_only_weights(model, join(folder, WEIGHTS))
            return
        # HDF5 writes to local files alone.
        with tempfile.TemporaryDirectory() as local:
            _tf_private.models.save_only_weights(model, join(local, WEIGHTS))
            tf.io.gfile.copy(join(local, WEIGHTS), join(folder, WEIGHTS))


def read(folder: str, name: str) -> Loaded:
    """Read a checkpoint and verify all its checksums.

    Args:
        folder: Folder of the checkpoint.
        name: Name of the checkpoint.

    Raises:
        DamagedError: If a file is missing, torn, or not what was written.
        UnknownFormatError: If a newer version wrote it.
    """
    state = read_state(folder)
    specs = [
        VariableSpec(
            path=entry["path"],
            shape=tuple(entry["shape"]),
            dtype=entry["dtype"],
            key=entry["key"],
        )
        for entry in state["variables"]
    ]
    try:
        with tf.device("cpu:0"):
            tensors = tf.raw_ops.RestoreV2(
                prefix=join(folder, PREFIX),
                tensor_names=[spec.key for spec in specs],
                shape_and_slices=[""] * len(specs),
                dtypes=[tf.as_dtype(spec.dtype) for spec in specs],
            )
    except (tf.errors.OpError, TypeError, ValueError) as error:
        raise DamagedError(f"the files {PREFIX}.* cannot be read: {error}") from error
    values = [tensor.numpy() for tensor in tensors]
    for entry, value in zip(state["variables"], values, strict=True):
        if _checksum(value) != entry["sha256"]:
            raise DamagedError(f"variable {entry['path']} has another checksum")
    return Loaded(name=name, specs=tuple(specs), values=tuple(values), state=state)


def _checksum(value: np.ndarray) -> str:
    contiguous = np.ascontiguousarray(value)
    return hashlib.sha256(contiguous.reshape(-1).view(np.uint8).data).hexdigest()
