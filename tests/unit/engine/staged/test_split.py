"""Batches are cut where the plan says, whatever they are made of."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from evener.engine.staged import split
from evener.errors import DataError
from evener.plan import split_batch

SHARES = st.lists(st.floats(0, 1e6), min_size=1, max_size=6).filter(lambda s: sum(s) > 0)


@given(st.integers(1, 5000), SHARES)
def test_cuts_are_those_of_the_plan(num_samples: int, shares: list[float]) -> None:
    cuts = split.cut_points(tf.constant(num_samples), tf.constant(shares, tf.float64)).numpy()
    assert cuts[0] == 0
    assert tuple(np.diff(cuts)) == split_batch(num_samples, shares)


def test_every_kind_of_tensor_is_split_and_joined() -> None:
    ragged = tf.ragged.constant([[1], [2, 3], [], [4]])
    sparse = tf.sparse.from_dense([[1, 0], [0, 2], [3, 0], [0, 0]])
    batch = {"dense": tf.range(4), "ragged": ragged, "sparse": sparse, "missing": None}
    parts = [split.take(batch, 0, 1), split.take(batch, 1, 4)]
    whole = split.join(parts)
    assert whole["missing"] is None
    assert whole["dense"].numpy().tolist() == [0, 1, 2, 3]
    assert whole["ragged"].to_list() == ragged.to_list()
    dense = tf.sparse.to_dense(whole["sparse"]).numpy()
    assert dense.tolist() == tf.sparse.to_dense(sparse).numpy().tolist()


@pytest.mark.parametrize(
    ("batch", "code", "names"),
    [
        ((None, None, None), "DATA-001", "no tensor"),
        ((np.zeros([0, 3]), None, None), "DATA-002", "0 samples"),
        ((["text"], None, None), "DATA-003", "str"),
        ((np.zeros([]), None, None), "DATA-004", "batch axis"),
    ],
)
def test_what_cannot_be_split_is_refused(batch: object, code: str, names: str) -> None:
    with pytest.raises(DataError) as caught:
        split.batch_size(split.unpack(batch))
    assert caught.value.code == code
    assert names in str(caught.value)


def test_the_batch_size_of_ragged_and_sparse_tensors_is_that_of_their_rows() -> None:
    assert int(split.batch_size([tf.ragged.constant([[1], [2, 3]])])) == 2
    assert int(split.batch_size([tf.sparse.from_dense([[1, 0], [0, 2], [0, 0]])])) == 3


def test_specs_forget_the_batch_size_only() -> None:
    assert split.spec_of_any_size(tf.zeros([4, 3])).shape.as_list() == [None, 3]
    assert split.spec_of_any_size(tf.TensorSpec([4, 3])).shape.as_list() == [None, 3]
    assert split.spec_of_any_size(tf.ragged.constant([[1], [2]])).shape[0] is None
    assert split.spec_of_any_size(None) is None
