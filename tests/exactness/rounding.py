"""Measure what rounding alone does to every case: the ground that tolerances stand on.

Run it from the folder `tests`: ``python -m exactness.rounding [CASE ...]``. It trains every
case with every optimizer on one device twice, the second time with the samples of each batch
in reverse order, which changes nothing but the order of sums, and prints the largest relative
errors of weights and history. At the end it does the same in half precision, where gradients
are rounded after each sum: there it also takes every step in two parts on one device.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from .candidates import OneDevice
from .compare import Results, differences
from .harness import BATCH, samples_for, start, train_case
from .models import BY_NAME, NUM_SAMPLES, OPTIMIZERS, Arrays
from .stand_ins import make_stand_ins

HALF_PRECISION = (
    ("mlp", "sgd", "mixed_float16"),
    ("cnn", "sgd", "mixed_float16"),
    ("mlp", "sgd", "mixed_bfloat16"),
)


def reverse_batches(arrays: Arrays, batch: int) -> Arrays:
    """Return the samples with the order inside each batch turned round."""
    if isinstance(arrays, Mapping):
        return {name: reverse_batches(array, batch) for name, array in arrays.items()}
    pieces = [arrays[cut : cut + batch][::-1] for cut in range(0, len(arrays), batch)]
    return np.concatenate(pieces)


def measure(case_name: str, optimizer: str, policy: str = "float32") -> dict[str, float]:
    """Return the largest error of the weights and of the history."""
    case = BY_NAME[case_name]
    x, y = case.data(samples_for(optimizer))

    def train(data: tuple[Arrays, Arrays]) -> Results:
        start()
        keras.config.set_dtype_policy(policy)
        return train_case(OneDevice(), case, optimizer, data=data)

    straight = train((x, y))
    turned = train((reverse_batches(x, BATCH), reverse_batches(y, BATCH)))
    # Evaluation and prediction have other batches: their errors would say something else.
    return {
        kind: max(differences({kind: straight[kind]}, {kind: turned[kind]}).values())
        for kind in ("weights", "history")
    }


def measure_in_parts(case_name: str, policy: str) -> float:
    """Return the largest error of weights that one device trains in parts of 10 and 6 samples."""
    case = BY_NAME[case_name]
    x, y = case.data(NUM_SAMPLES)
    loss_of = case.compiled()["loss"]
    assert isinstance(loss_of, keras.losses.Loss)

    def train(cuts: tuple[float, ...]) -> dict[str, object]:
        start()
        keras.config.set_dtype_policy(policy)
        model = case.build()
        model.compile(OPTIMIZERS["sgd"](), loss_of)
        for begin in [*range(0, len(x), BATCH)] * 2:
            size = min(BATCH, len(x) - begin)
            edges = [begin + round(cut * size) for cut in cuts]
            sums = [tf.zeros(v.shape) for v in model.trainable_variables]
            for a, b in itertools.pairwise(edges):
                with tf.GradientTape() as tape:
                    part = loss_of(y[a:b], model(x[a:b], training=True)) * ((b - a) / size)
                    scaled = model.optimizer.scale_loss(part)
                found = tape.gradient(scaled, [v.value for v in model.trainable_variables])
                sums = [total + value for total, value in zip(sums, found, strict=True)]
            model.optimizer.apply(sums, model.trainable_variables)
        return {"weights": model.get_weights()}

    return max(differences(train((0, 1)), train((0, 5 / 8, 1))).values())


def main(names: list[str]) -> None:
    """Print the table for the named cases, or for all."""
    make_stand_ins()
    full = [(name, optimizer, "float32") for name in BY_NAME for optimizer in OPTIMIZERS]
    for name, optimizer, policy in (*full, *HALF_PRECISION):
        if names and name not in names:
            continue
        kinds = measure(name, optimizer, policy)
        shown = "  ".join(f"{kind} {error:.1e}" for kind, error in kinds.items())
        if policy != "float32" and name == "mlp":  # a BatchNorm cannot be cut in parts
            shown += f"  in parts {measure_in_parts(name, policy):.1e}"
        print(f"{name:14} {optimizer:6} {policy:14}  {shown}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
