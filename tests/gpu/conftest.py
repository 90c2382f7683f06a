"""One GPU, cut once into two of different memory; without one, everything is skipped."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import pytest
import tensorflow as tf

import evener
from gpu.ground import caps_for, spec_for


@pytest.fixture(scope="session")
def card() -> tuple[tuple[int, int], tuple[evener.UsedDevice, ...]]:
    """The caps, and the two devices that evener made of the first GPU."""
    if not tf.config.list_physical_devices("GPU"):
        fallback = evener.inventory("all").fallback
        why = fallback.why if fallback is not None else "TensorFlow sees none."
        pytest.skip(f"no GPU: {why}")
    if not tf.config.get_visible_devices("GPU"):
        pytest.skip("this process runs on stand-ins: `make gpu-check` runs these tests alone")
    (gpu, *_) = evener.inventory("gpu:0").used
    caps = caps_for(gpu.memory_free_bytes)
    devices = evener.use_devices(spec_for(caps))
    # TF32 keeps 10 bits of 23: what is compared here is float32.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    return caps, devices


@pytest.fixture(autouse=True)
def clean(card: object) -> Iterator[None]:
    """Need the GPUs, and leave no models on them."""
    keras.utils.set_random_seed(1)
    yield
    keras.utils.clear_session()
    keras.config.set_dtype_policy("float32")
