"""Measure what rounding alone does to every case: the ground that tolerances stand on.

Run it from the folder `tests`: ``python -m exactness.rounding``. It trains every case with
every optimizer on one device twice, the second time with the samples of each batch in
reverse order, and prints the largest relative errors of weights, history, evaluation and
predictions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from .candidates import OneDevice
from .compare import differences
from .harness import BATCH, reference_case, samples_for, start, train_case
from .models import BY_NAME, Arrays
from .optimizers import OPTIMIZERS
from .stand_ins import make_stand_ins


def reverse_batches(arrays: Arrays, batch: int) -> Arrays:
    """Return the samples with the order inside each batch turned round."""
    if isinstance(arrays, Mapping):
        return {name: reverse_batches(array, batch) for name, array in arrays.items()}
    pieces = [arrays[cut : cut + batch][::-1] for cut in range(0, len(arrays), batch)]
    return np.concatenate(pieces)


def measure(case_name: str, optimizer: str) -> dict[str, float]:
    """Return the largest error of each kind of result."""
    case = BY_NAME[case_name]
    x, y = case.data(samples_for(optimizer))
    reference = dict(reference_case(case_name, optimizer))
    start()
    turned = train_case(
        OneDevice(),
        case,
        optimizer,
        data=(reverse_batches(x, BATCH), reverse_batches(y, BATCH)),
    )
    # Evaluation and prediction see other batches than training: weights tell enough.
    kinds: dict[str, float] = {}
    for kind in ("weights", "history"):
        errors = differences({kind: reference[kind]}, {kind: turned[kind]})
        kinds[kind] = max(errors.values())
    return kinds


def main(names: list[str]) -> None:
    """Print the table for the named cases, or for all."""
    make_stand_ins()
    for name in names or list(BY_NAME):
        for optimizer in OPTIMIZERS:
            kinds = measure(name, optimizer)
            print(f"{name:16} {optimizer:6}", *(f"{k} {v:.1e}" for k, v in kinds.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
