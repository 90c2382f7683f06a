"""``state.json`` of a checkpoint: everything but the values of variables, with its checksum."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import tensorflow as tf

from evener.checkpoint.folders import join

STATE = "state.json"
FORMAT = 1


class DamagedError(Exception):
    """Damage of a checkpoint: a file is missing, torn, or has other bytes than were written."""


class UnknownFormatError(Exception):
    """Format of a newer version of evener."""


def write_state(folder: str, state: dict[str, Any]) -> None:
    """Write the state of a checkpoint.

    Args:
        folder: Folder of the checkpoint.
        state: Values as JSON has them.
    """
    text = json.dumps({"format": FORMAT, **state}, indent=1, sort_keys=True)
    envelope = {"checksum": _checksum(text), "state": json.loads(text)}
    with tf.io.gfile.GFile(join(folder, STATE), "w") as file:
        file.write(json.dumps(envelope, indent=1, sort_keys=True))


def read_state(folder: str) -> dict[str, Any]:
    """Read the state of a checkpoint.

    Args:
        folder: Folder of the checkpoint.

    Raises:
        DamagedError: If it cannot be read, or is not what was written.
        UnknownFormatError: If a newer version wrote it.
    """
    try:
        with tf.io.gfile.GFile(join(folder, STATE), "r") as file:
            envelope = json.loads(file.read())
        checksum, state = envelope["checksum"], envelope["state"]
    except (tf.errors.OpError, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{STATE} cannot be read: {error}") from error
    if checksum != _checksum(json.dumps(state, indent=1, sort_keys=True)):
        raise DamagedError(f"{STATE} has another checksum than was written")
    if state["format"] > FORMAT:
        raise UnknownFormatError(f"format {state['format']}, and {FORMAT} is known")
    return state


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
