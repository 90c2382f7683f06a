"""The strategies that are checked, and what all checks need."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import evener

TWO = ("cpu:1", "cpu:2")
THREE = ("cpu:1", "cpu:2", "cpu:3")


def make(name: str) -> tf.distribute.Strategy:
    """Return a new strategy by its kind and its number of devices.

    ``"evener-2"``: one replica on two devices; ``"cut-2"``: one whose plan cuts the share of each
    device into micro-batches; ``"one-1"``: their reference, `OneDeviceStrategy`; ``"mirrored-2"``:
    what checkpoints may come from.
    """
    kind, _, count = name.partition("-")
    devices = [f"cpu:{index + 1}" for index in range(int(count))]
    if kind == "mirrored":
        # One collective that fails would let all later ones of the process fail.
        return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())
    if kind == "one":
        return tf.distribute.OneDeviceStrategy(devices[0])
    if kind == "cut":
        return cut(devices)
    return evener.Strategy(devices=devices, shares="even")


def cut(devices: Sequence[str], shares: Sequence[float] | None = None) -> evener.Strategy:
    """Return a strategy with three micro-batches on each device."""
    plan = evener.Plan.data_parallel(list(devices), shares=shares)
    replicas = [dataclasses.replace(replica, num_micro_batches=3) for replica in plan.replicas]
    return evener.Strategy(dataclasses.replace(plan, replicas=tuple(replicas)))


def local(strategy: tf.distribute.Strategy, value: Any) -> list[Any]:
    """Return what each replica has, as NumPy arrays; of nests, per replica a nest."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, tf.RaggedTensor):
            return leaf.to_list()
        if isinstance(leaf, tf.SparseTensor):
            return tf.sparse.to_dense(leaf).numpy()
        if isinstance(leaf, tf.IndexedSlices):
            return tf.convert_to_tensor(leaf).numpy()
        return leaf.numpy() if hasattr(leaf, "numpy") else leaf

    return [convert(part) for part in strategy.experimental_local_results(value)]


def values(strategy: tf.distribute.Strategy, parts: Sequence[Any]) -> Any:
    """Return a distributed value with one part per replica."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(parts[context.replica_id_in_sync_group])
    )


def replica_id() -> tf.Tensor:
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def replica_float() -> tf.Tensor:
    return tf.cast(replica_id(), tf.float32)


def same(got: Sequence[Any], expected: Sequence[Any]) -> None:
    """Compare what each replica has with what it should have, shapes included."""
    assert len(got) == len(expected)
    for value, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(value, np.asarray(wanted), rtol=1e-6)
        assert np.shape(value) == np.shape(wanted)


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
