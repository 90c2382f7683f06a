"""The devices that the checks run on, and how the same thing is trained on one of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

import evener
from exactness.compare import assert_equal, state_of
from exactness.models import BY_NAME

SEED = 11
BATCH = 16
NUM_SAMPLES = 75  # four whole batches and one of 11
EPOCHS = 2

GIBIBYTE = 2**30
WANTED = (10 * GIBIBYTE, 5 * GIBIBYTE)
# For what the CUDA libraries and other programs need.
SPARE = GIBIBYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Two devices, of the same physical kind."""

    devices: tuple[str, str]
    tolerance: float
    half_tolerance: float
    slow_on: Literal["own", "cpu:0"]
    slow_size: int

    def strategy(self, **arguments: object) -> evener.Strategy:
        """Return a strategy on both devices, with shares of 5 to 3 unless told otherwise."""
        return evener.Strategy(devices=list(self.devices), **{"shares": [5, 3], **arguments})

    def one_device(self) -> AbstractContextManager[object]:
        """Return the scope of the first device alone, without evener."""
        return tf.device(self.devices[0].upper())


# Rounding is 6e-8 in float32 and 5e-4 in float16; a GPU's libraries choose other kernels for
# other sizes of a batch.
STAND_INS = Ground(
    devices=("cpu:0", "cpu:1"), tolerance=1e-5, half_tolerance=5e-3, slow_on="own", slow_size=400
)
GPUS = Ground(
    devices=("gpu:0", "gpu:1"), tolerance=1e-4, half_tolerance=2e-2, slow_on="cpu:0", slow_size=1000
)


def build(
    case_name: str,
    scope: AbstractContextManager[object],
    *,
    policy: str = "float32",
    **compiled: object,
) -> keras.Model:
    """Make a case's model under a scope, always with the same weights, and compile it."""
    case = BY_NAME[case_name]
    # It also forgets the policy.
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(SEED)
    keras.config.set_dtype_policy(policy)
    with scope:
        model = case.build()
        settings = {
            "optimizer": keras.optimizers.SGD(0.05, momentum=0.9),
            # "auto" means XLA on a GPU without a strategy: another program, which rounds
            # otherwise.
            "jit_compile": False,
            **case.compiled(),
            **compiled,
        }
        model.compile(**settings)
    return model


def train(case_name: str, model: keras.Model, **settings: object) -> dict[str, object]:
    """Fit, evaluate and predict; return all that must agree."""
    x, y = BY_NAME[case_name].data(NUM_SAMPLES)
    history = model.fit(
        x, y, **{"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0, **settings}
    )
    losses = history.history["loss"]
    assert losses[-1] < losses[0], "a model that does not learn agrees with anything"
    return {
        **state_of(model),
        "history": history.history,
        "evaluate": model.evaluate(x, y, batch_size=20, verbose=0, return_dict=True),
        "predict": model.predict(x, batch_size=20, verbose=0),
    }


def agrees_with_one_device(
    ground: Ground,
    case_name: str,
    *,
    within: float,
    compiled: Mapping[str, object] | None = None,
    fit: Mapping[str, object] | None = None,
    **arguments: object,
) -> evener.Strategy:
    """Train a case on one device and on both; fail where they differ. Return the strategy.

    Other arguments are those of the strategy.
    """
    compiled, fit = compiled or {}, fit or {}
    reference = train(case_name, build(case_name, ground.one_device(), **compiled), **fit)
    strategy = ground.strategy(**arguments)
    candidate = train(case_name, build(case_name, strategy.scope(), **compiled), **fit)
    assert_equal(reference, candidate, within=within, where=f"{case_name} on {ground.devices}")
    return strategy


def placed(variables: Sequence[object]) -> dict[str, str]:
    """Return on which device each variable really is, by path."""
    return {v.path: device_of(v.value.device) for v in variables}


def device_of(full_name: str) -> str:
    """Return evener's name of a device that TensorFlow names in full."""
    spec = tf.DeviceSpec.from_string(full_name)
    return f"{(spec.device_type or '').lower()}:{spec.device_index}"


def rows(num_samples: int) -> np.ndarray:
    """Return rows of eight numbers."""
    return np.random.default_rng(SEED).normal(size=(num_samples, 8)).astype("float32")


def caps_for(free_bytes: int | None) -> tuple[int, int]:
    """Return the caps of the two parts: 10 and 5 GiB, or a half and a quarter of a small GPU.

    ``EVENER_GPU_CAPS_MIB`` may name others, as in ``2048,1024``.
    """
    if named := os.environ.get("EVENER_GPU_CAPS_MIB"):
        first, second = (int(cap) * 2**20 for cap in named.split(","))
        return first, second
    if free_bytes is None or free_bytes >= sum(WANTED) + SPARE:
        return WANTED
    unit = (free_bytes // 4) // 2**20 * 2**20
    return (2 * unit, unit)


def spec_for(caps: tuple[int, int]) -> str:
    """Return the device spec that cuts the first GPU."""
    return ",".join(f"gpu:0@{cap // 2**20}MiB" for cap in caps)
