"""States of random generators as JSON values: Python's, NumPy's and TensorFlow's global ones.

Keras's seed generators and `tf.random.Generator` keep their states in variables, which are kept as
such. Kernels of TensorFlow that draw without a generator keep theirs where nothing can read it.
"""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import numpy as np

from evener._tf_private.random_numbers import operation_seeds, set_operation_seeds

State = dict[str, Any]
"""State of all global generators, as JSON has it."""


def read() -> State:
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    seeds = operation_seeds()
    return {
        "python": [version, _packed(words), gauss],
        "numpy": [name, _packed(keys), int(position), int(has_gauss), float(cached)],
        "tensorflow": None if seeds is None else [seeds[0], _packed(seeds[1]), seeds[2]],
    }


def restore(state: State) -> None:
    random.setstate(_python_state(state["python"]))
    np.random.set_state(_numpy_state(state["numpy"]))
    if state["tensorflow"] is not None:
        set_operation_seeds(_python_state(state["tensorflow"]))


def check(state: State) -> bool:
    """Return True for states that `restore` can put back; an error is raised for others."""
    random.Random().setstate(_python_state(state["python"]))
    random.Random().setstate(_python_state(state["tensorflow"] or state["python"]))
    np.random.RandomState().set_state(_numpy_state(state["numpy"]))
    # NumPy reads the word there unchecked.
    return 0 <= state["numpy"][2] <= len(_unpacked(state["numpy"][1]))


def derived_seed() -> int:
    """Return a seed that depends on the states of the generators, without a draw from them."""
    digest = hashlib.sha256(json.dumps(read()).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _python_state(state: Any) -> tuple[Any, ...]:
    version, words, gauss = state
    return version, _unpacked(words), None if gauss is None else float(gauss)


def _numpy_state(state: Any) -> tuple[Any, ...]:
    name, keys, position, has_gauss, cached = state
    return name, np.array(_unpacked(keys), np.uint32), position, has_gauss, cached


def _packed(words: Any) -> str:
    return np.asarray(words, np.uint32).astype("<u4").tobytes().hex()


def _unpacked(text: str) -> tuple[int, ...]:
    return tuple(np.frombuffer(bytes.fromhex(text), "<u4").tolist())
