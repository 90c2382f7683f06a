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

from evener import _tf_private

State = dict[str, Any]
"""State of all global generators, as JSON has it."""


def read() -> State:
    """Return the states of Python's, NumPy's and TensorFlow's global generators."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, _packed(words), gauss],
        "numpy": [name, _packed(keys), int(position), int(has_gauss), float(cached)],
        "tensorflow": _packed_python(_tf_private.random_numbers.operation_seeds()),
    }


def restore(state: State) -> None:
    """Put back the states that `read` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, _unpacked(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(_unpacked(keys), np.uint32), position, has_gauss, cached))
    if state["tensorflow"] is not None:
        version, words, gauss = state["tensorflow"]
        seeds = (version, _unpacked(words), gauss)
        _tf_private.random_numbers.set_operation_seeds(seeds)


def derived_seed() -> int:
    """Return a seed that depends on the states of the generators, without a draw from them.

    Returns:
        Number below 2**31: the same for programs that set the same seeds, another one otherwise.
    """
    digest = hashlib.sha256(json.dumps(read()).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _packed_python(state: Any) -> Any:
    if state is None:
        return None
    version, words, gauss = state
    return [version, _packed(words), gauss]


def _packed(words: Any) -> str:
    return np.asarray(words, np.uint32).astype("<u4").tobytes().hex()


def _unpacked(text: str) -> tuple[int, ...]:
    return tuple(np.frombuffer(bytes.fromhex(text), "<u4").tolist())
