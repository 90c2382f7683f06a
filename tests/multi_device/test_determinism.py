"""Steps where all operations have to be deterministic: nothing may read the clock."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

CODE = """
    import keras, numpy as np, tensorflow as tf, evener
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    strategy = evener.Strategy(devices=["cpu:0", "cpu:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    losses = model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0], losses
    assert strategy.report().num_operations > 0
    print(strategy.shares, strategy.share_controller.num_steps)
"""


def test_shares_stay_and_training_goes_on(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    assert run_python(CODE, num_cpus=2).stdout.split("\n")[-2] == "(0.5, 0.5) 0"
