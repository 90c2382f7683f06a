"""Steps of the corpus repeat on one device, to the bit.

One in eight does it here. Each is run on one device anyway where several devices are compared with
it (`runs.one_device`): so one that does not repeat is seen there too.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from .case import CASES, SEED, BuiltStep, graph_optimizers_of

Arrays = list[np.ndarray]
# What the steps returned, and the state before and after.
Run = tuple[list[Arrays], Arrays, Arrays]


def as_arrays(results: Any) -> Arrays:
    """Return the tensors and numbers of a structure as arrays, in a fixed order."""
    arrays: Arrays = []
    for leaf in tf.nest.flatten(results, expand_composites=True):
        if leaf is not None:
            array = np.array(tf.convert_to_tensor(leaf))
            arrays.append(array.astype("S") if array.dtype == object else array)
    return arrays


def run_steps(built: BuiltStep) -> Run:
    """Run the steps of a case; return what they gave, and the state before and after."""
    step, rng = tf.function(built.step), np.random.default_rng(SEED)
    before = as_arrays(list(built.variables))
    returned = [as_arrays(step(*built.batch(rng, size))) for size in built.sizes]
    return returned, before, as_arrays(list(built.variables))


def differ(first: Arrays, second: Arrays, *, same_bits: bool = True) -> bool:
    """Return whether two lists of arrays are unlike, in any bit or by more than rounding."""
    if len(first) != len(second):
        return True
    for a, b in zip(first, second, strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return True
        if same_bits or not np.issubdtype(a.dtype, np.floating):
            if a.tobytes() != b.tobytes():
                return True
        elif not np.allclose(a, b, rtol=1e-5, atol=1e-5):
            return True
    return False


@pytest.mark.sampled(15)
@pytest.mark.parametrize("name", list(CASES)[::8])
def test_runs_on_one_device(name: str) -> None:
    with graph_optimizers_of(name):
        hold_on_one_device(name)


def hold_on_one_device(name: str) -> None:
    """Run a case until two runs agree; hold what it gives."""
    built = CASES[name]()
    returned, before, after = run_steps(built)
    for array in [*after, *(array for arrays in returned for array in arrays)]:
        if np.issubdtype(array.dtype, np.floating):
            assert np.isfinite(array).all()
    assert differ(before, after) or any(differ(returned[0], other) for other in returned[1:])
    # TensorFlow itself may need several runs to give the same once more: any may be the odd one.
    runs = [(returned, before, after)]
    for _ in range(built.references):
        again = run_steps(CASES[name]())
        if any(same(run, again, same_bits=built.same_bits) for run in runs):
            return
        runs.append(again)
    raise AssertionError(f"no two of {len(runs)} runs on one device give the same")


def same(first: Run, second: Run, *, same_bits: bool) -> bool:
    """Return whether two runs of a case give the same."""
    assert not differ(first[1], second[1])
    unlike = functools.partial(differ, same_bits=same_bits)
    return not any(map(unlike, first[0], second[0])) and not unlike(first[2], second[2])
