"""Checks for two devices of any kind: real GPUs, or stand-ins.

Every function whose name begins with ``check_`` is run on GPUs by ``test_on_gpus.py``, and on
stand-ins by ``tests/multi_device/test_layouts.py``.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener import Plan
from evener.devices.names import tf_device
from exactness.compare import assert_equal, state_of
from gpu.ground import BATCH, Ground, agrees_with_one_device, build, device_of, placed, rows, train
from gpu.traced import operations

Check = Callable[[Ground], None]


def check_mlp_is_exact(ground: Ground) -> None:
    agrees_with_one_device(ground, "mlp", within=ground.tolerance)


def check_cnn_with_synchronised_batch_norm_is_exact(ground: Ground) -> None:
    agrees_with_one_device(ground, "cnn", within=ground.tolerance)


def check_transformer_is_exact(ground: Ground) -> None:
    agrees_with_one_device(ground, "transformer", within=ground.tolerance)


def check_adam_is_exact(ground: Ground) -> None:
    def compiled() -> dict[str, object]:
        return {"optimizer": keras.optimizers.Adam(0.01, epsilon=1e-3, global_clipnorm=1.0)}

    reference = train("mlp", build("mlp", ground.one_device(), **compiled()))
    model = build("mlp", ground.strategy().scope(), **compiled())
    _agree(reference, train("mlp", model), within=ground.tolerance)


def check_xla_is_exact(ground: Ground) -> None:
    agrees_with_one_device(ground, "mlp", within=ground.tolerance, compiled={"jit_compile": True})


def check_dropout_compiled_by_xla_is_that_of_one_device(ground: Ground) -> None:
    reference = _trained(_small_layers, ground.one_device(), jit_compile=True)
    found = _trained(_small_layers, ground.strategy().scope(), jit_compile=True)
    _agree(reference, found, within=ground.tolerance)


def check_several_steps_in_one_execution_are_exact(ground: Ground) -> None:
    agrees_with_one_device(
        ground, "mlp", within=ground.tolerance, compiled={"steps_per_execution": 3}
    )


def check_a_batch_smaller_than_the_devices_is_exact(ground: Ground) -> None:
    # 75 = 37 * 2 + 1: one device has nothing to do in the last step.
    agrees_with_one_device(ground, "mlp", within=ground.tolerance, fit={"batch_size": 2})


def check_shares_that_change_are_exact(ground: Ground) -> None:
    reference = train("mlp", build("mlp", ground.one_device()))
    strategy = ground.strategy()
    changes = [(1, 1), (0, 1), (7, 1), (1, 0)]
    change = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: strategy.set_shares(changes[batch % 4])
    )
    model = build("mlp", strategy.scope())
    _agree(reference, train("mlp", model, callbacks=[change]), within=ground.tolerance)


def scaled_sgd() -> keras.optimizers.Optimizer:
    inner = keras.optimizers.SGD(0.05, momentum=0.9)
    # Far from overflow: near it a sum over a whole batch overflows where those over two parts
    # of it do not, and then one run skips a step that the other takes.
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=256.0)


def check_float16_with_loss_scaling(ground: Ground) -> None:
    model = build("mlp", ground.one_device(), policy="mixed_float16", optimizer=scaled_sgd())
    reference = train("mlp", model)
    two = build("mlp", ground.strategy().scope(), policy="mixed_float16", optimizer=scaled_sgd())
    candidate = train("mlp", two)
    assert two.layers[0].compute_dtype == "float16"
    _agree(reference, candidate, within=ground.half_tolerance)


def check_an_overflow_on_one_device_skips_the_step_on_all(ground: Ground) -> None:
    strategy = ground.strategy()
    model = build("mlp", strategy.scope(), policy="mixed_float16", optimizer=scaled_sgd())
    x, y = rows(BATCH), np.arange(BATCH, dtype="int32") % 4
    model.train_on_batch(x, y)
    before = model.get_weights()
    x[-1] = np.inf
    model.train_on_batch(x, y)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert float(model.optimizer.dynamic_scale) == 128.0
    assert strategy.report().num_operations > 0


def _small_layers() -> list[keras.layers.Layer]:
    layers = keras.layers
    return [
        layers.Dense(16, activation="tanh", name="a0"),
        layers.BatchNormalization(name="a1"),
        layers.Dropout(0.4, seed=5, name="b0"),
        layers.Dense(4, name="b1"),
    ]


def _recurrent_layers() -> list[keras.layers.Layer]:
    layers = keras.layers
    return [
        layers.Reshape((4, 2)),
        layers.LSTM(6, return_sequences=True),
        layers.Bidirectional(layers.GRU(5)),
        layers.Dense(4),
    ]


def _trained(
    layers: Callable[[], list[keras.layers.Layer]], scope: Any, *, jit_compile: bool = False
) -> dict[str, object]:
    """Return the state after some steps on the rows, with a partial batch at the end."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    with scope:
        model = keras.Sequential([keras.Input((8,)), *layers()])
        optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3)
        model.compile(optimizer, "mse", metrics=["mae"], jit_compile=jit_compile)
    x = rows(3 * BATCH + 5)
    history = model.fit(x, x[:, :4], batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    return {**state_of(model), "history": history.history}


def check_dropout_is_that_of_one_device(ground: Ground) -> None:
    reference = _trained(_small_layers, ground.one_device())
    _agree(reference, _trained(_small_layers, ground.strategy().scope()), within=ground.tolerance)


def check_recurrent_layers_are_exact(ground: Ground) -> None:
    reference = _trained(_recurrent_layers, ground.one_device())
    strategy = ground.strategy()
    _agree(reference, _trained(_recurrent_layers, strategy.scope()), within=ground.tolerance)


def check_stages_are_exact(ground: Ground) -> None:
    first, second = ground.devices
    reference = _trained(_small_layers, ground.one_device())
    stages = {first: "a*", second: "b*"}
    plans = {
        "stages": Plan.pipeline(stages, num_micro_batches=4),
        "gpipe": Plan.pipeline(stages, num_micro_batches=3, schedule="gpipe"),
        "recomputed": Plan.pipeline(stages, num_micro_batches=2, recompute=["a*", "b0"]),
        "owned by the host": Plan.pipeline(stages, num_micro_batches=2, owners={"*": "host"}),
        "in turns": Plan.pipeline(
            [(second, "a0"), (first, "a1"), (second, "b0"), (first, "b1")], num_micro_batches=3
        ),
    }
    for name, plan in plans.items():
        found = _trained(_small_layers, evener.Strategy(plan).scope())
        assert_equal(reference, found, within=ground.tolerance, where=name)


def check_dropout_repeats_from_one_seed(ground: Ground) -> None:
    x = rows(64)

    def run() -> list[np.ndarray]:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(3)
        with ground.strategy().scope():
            model = keras.Sequential(
                [
                    keras.Input((8,)),
                    keras.layers.Dense(16, activation="tanh"),
                    keras.layers.Dropout(0.5),
                    keras.layers.Dense(1),
                ]
            )
            model.compile("sgd", "mse", jit_compile=False)
        model.fit(x, x[:, :1], batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        # Without training nothing is dropped.
        np.testing.assert_array_equal(model.predict(x, verbose=0), model.predict(x, verbose=0))
        return model.get_weights()

    first, second = run(), run()
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert np.isfinite(a).all()


def check_owners_are_spread(ground: Ground) -> None:
    strategy = ground.strategy()
    model = build("mlp", strategy.scope(), optimizer="adam")
    train("mlp", model)
    where = placed([*model.variables, *model.optimizer.variables])
    kernels = {path: device for path, device in where.items() if path.endswith("kernel")}
    assert set(kernels.values()) == set(ground.devices)
    # A slot lives beside its variable.
    for variable in model.trainable_variables:
        slots = [v for v in model.optimizer.variables if _is_slot_of(v.path, variable.path)]
        assert len(slots) == 2
        assert set(placed(slots).values()) == {where[variable.path]}
    # The registry tells the truth.
    owned = {v.path: v.device for v in strategy.owner_registry.variables}
    assert {path: owned[path] for path in kernels} == kernels


def check_the_host_can_own(ground: Ground) -> None:
    strategy = agrees_with_one_device(ground, "mlp", within=ground.tolerance, owners="central")
    assert {variable.device for variable in strategy.owner_registry.variables} == {"cpu:0"}


def check_owners_can_be_named(ground: Ground) -> None:
    first, second = ground.devices
    strategy = ground.strategy(owners={"*kernel": second, "*": first})
    model = build("mlp", strategy.scope())
    train("mlp", model)
    for path, device in placed(model.trainable_variables).items():
        assert device == (second if path.endswith("kernel") else first), path


def check_every_replica_computes_on_its_own_device(ground: Ground, folder: Path) -> None:
    strategy = ground.strategy()
    model = build("mlp", strategy.scope())
    x = rows(BATCH)
    y = np.arange(BATCH, dtype="int32") % 4
    ran = operations(lambda: model.train_on_batch(x, y), folder)
    # A product may have been fused with what comes after it.
    products = collections.Counter(device_of(device) for op, device in ran if "MatMul" in op)
    # Forward and backward of three layers; the first has no gradient for its input.
    assert products == dict.fromkeys(ground.devices, 3 + 3 + 2), products


def check_a_slowed_device_gets_less(ground: Ground) -> None:
    reference = train("mlp", build("mlp", ground.one_device()), epochs=12)
    strategy = ground.strategy(shares=None)
    model = build("mlp", strategy.scope())
    strategy.share_controller.before_part = _slow(ground, part=1)
    candidate = train("mlp", model, epochs=12)
    assert strategy.share_controller.events
    assert strategy.shares[0] > 0.6
    _agree(reference, candidate, within=ground.tolerance)


def _slow(ground: Ground, *, part: int) -> Callable[[int, tf.Tensor], tf.Tensor]:
    """Return what a part computes in vain before its task, for each of its rows."""
    operand = tf.constant(np.eye(ground.slow_size, dtype="float32"))
    where = ground.devices[part] if ground.slow_on == "own" else ground.slow_on

    def wait(replica: int, rows: tf.Tensor) -> tf.Tensor:
        if replica != part:
            return tf.zeros([])
        with tf.device(tf_device(where)):
            return tf.while_loop(
                lambda k, _: k < rows,
                lambda k, matrix: (k + 1, tf.linalg.matmul(matrix, operand)),
                [tf.zeros([], tf.int32), tf.identity(operand)],
                maximum_iterations=BATCH,
            )[1]

    return wait


def _is_slot_of(slot: str, variable: str) -> bool:
    return variable.replace("/", "_") in slot and slot.rsplit("_", 1)[-1] != "rate"


def _agree(reference: dict[str, object], candidate: dict[str, object], *, within: float) -> None:
    assert_equal(reference, candidate, within=within, where="two devices")


CHECKS = tuple(
    pytest.param(value, id=name.removeprefix("check_"))
    for name, value in sorted(globals().items())
    if name.startswith("check_")
)
