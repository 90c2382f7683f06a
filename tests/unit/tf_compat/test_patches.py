"""What is changed in Keras: it works as is said, and all of it is in the list."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from evener import Strategy
from evener.tf_compat.patches import PATCHES, patch_keras

pytestmark = pytest.mark.usefixtures("logical_cpus")


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"use_ema": True}])
def test_an_optimizer_made_under_no_strategy_follows(options: dict[str, object]) -> None:
    optimizer = keras.optimizers.Adam(**options)
    strategy = Strategy(devices=["cpu:1", "cpu:2"], shares="even")
    with strategy.scope():
        variable = keras.Variable(tf.ones([40]))

    @tf.function
    def step(x: tf.Tensor) -> None:
        strategy.run(lambda one: optimizer.apply([tf.reduce_sum(one, 0)], [variable]), args=(x,))

    for _ in range(2):
        step(tf.ones([4, 40]))
    assert float(variable[0]) != 1.0
    slots = [one for one in optimizer.variables if one.shape == variable.shape]
    assert {one.value.device for one in slots} == {variable.value.device}


def test_elsewhere_an_optimizer_keeps_its_strategy() -> None:
    patch_keras(Strategy)
    mirrored = tf.distribute.MirroredStrategy(["cpu:1"])
    with mirrored.scope():
        inside = keras.optimizers.SGD()
    outside = keras.optimizers.SGD()
    with Strategy(devices=["cpu:1", "cpu:2"]).scope():
        assert inside._distribution_strategy is mirrored
        assert outside._distribution_strategy is tf.distribute.get_strategy()
    assert outside._distribution_strategy is tf.distribute.get_strategy()
    with mirrored.scope():
        assert outside._distribution_strategy is not mirrored


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # how Keras finds the end
@pytest.mark.parametrize("reshuffled", [True, False])
def test_data_comes_in_the_order_of_one_device(reshuffled: bool) -> None:
    """Python's generators lose no batch; a dataset is shuffled as often as on one device."""
    seen: dict[bool, list[np.ndarray]] = {}
    for is_plain in (True, False):
        keras.utils.set_random_seed(1)
        data = tf.data.Dataset.range(12).map(lambda x: (tf.cast(x, tf.float32)[None],) * 2)
        data = data.shuffle(12, seed=3, reshuffle_each_iteration=reshuffled).batch(5)
        rows = seen.setdefault(is_plain, [])

        class Keep(keras.layers.Layer):
            def call(self, x: tf.Tensor, rows: list[np.ndarray] = rows) -> tf.Tensor:
                tf.py_function(lambda one, rows=rows: rows.append(one.numpy()), [x], [])
                return x

        def make() -> keras.Model:
            model = keras.Sequential([Keep(), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            return model

        if is_plain:
            model = make()
        else:
            with Strategy(devices=["cpu:1", "cpu:2"], shares="even").scope():
                model = make()
        model.fit(data, epochs=2, shuffle=False, verbose=0)
        given = ((np.full([2, 1], k, "f4"),) * 2 for k in range(3))
        model.fit(given, epochs=1, shuffle=False, verbose=0)
    assert len(seen[True]) == 2 * 3 + 3
    for one, other in zip(seen[True], seen[False], strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_list_is_whole() -> None:
    """Every attribute of Keras and TensorFlow that the file sets is in it."""
    patch_keras(Strategy)
    assert isinstance(
        inspect.getattr_static(keras.optimizers.SGD, "_distribution_strategy"), property
    )
    assert hasattr(keras.Model._maybe_symbolic_build, "_evener_kind")
    assert len(PATCHES) == 3
