"""Checks that need a real GPU: caps that hold, growing memory, owners by memory, the demo."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.recording.measured import gpu_memory
from gpu.ground import BATCH, GPUS

ROOT = Path(__file__).parents[2]
Card = tuple[tuple[int, int], tuple[evener.UsedDevice, ...]]


def allocate(device: str, num_bytes: int) -> tf.Tensor:
    with tf.device(device.upper()):
        # Filled on the device: nothing of this size is sent there.
        return tf.fill([num_bytes // 2**20, 2**18], 1.0)


def test_one_card_is_two_devices_with_caps(card: Card) -> None:
    caps, devices = card
    assert [device.name for device in devices] == ["gpu:0", "gpu:1"]
    assert [device.physical for device in devices] == ["gpu:0", "gpu:0"]
    assert tuple(device.memory_bytes for device in devices) == caps
    logical = [device.name for device in tf.config.list_logical_devices("GPU")]
    assert logical == ["/device:GPU:0", "/device:GPU:1"]
    (physical,) = tf.config.get_visible_devices("GPU")
    made = tf.config.get_logical_device_configuration(physical)
    assert tuple(device.memory_limit * 2**20 for device in made) == caps


def test_a_cap_holds(card: Card) -> None:
    (_, less), _ = card
    too_much = int(1.2 * less)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        allocate("gpu:1", too_much)
    assert float(allocate("gpu:0", too_much)[0, 0]) == 1.0


def test_the_memory_in_use_is_read(card: Card) -> None:
    before = gpu_memory("gpu:0")
    kept = allocate("gpu:0", 256 * 2**20)
    after = gpu_memory("gpu:0")
    assert before is not None and after is not None
    assert after.current_bytes - before.current_bytes >= 256 * 2**20
    assert after.peak_bytes >= after.current_bytes
    assert "GPU:0" in kept.device


def test_owners_are_spread_by_memory(card: Card) -> None:
    caps, _ = card
    strategy = evener.Strategy(devices=list(GPUS.devices), shares="even")
    with strategy.scope():
        layers = [keras.layers.Dense(256, activation="tanh") for _ in range(24)]
        model = keras.Sequential([keras.Input((256,)), *layers])
        model.compile("adam", "mse", jit_compile=False)
    x = np.ones((BATCH, 256), "float32")
    model.fit(x, x, batch_size=BATCH, verbose=0)
    owned = strategy.owner_registry.owned_bytes()
    assert owned["gpu:0"] / owned["gpu:1"] == pytest.approx(caps[0] / caps[1], rel=0.25)


def test_memory_grows_as_it_is_needed(
    run_python: Callable[..., subprocess.CompletedProcess],
) -> None:
    code = """
        import pynvml
        import evener
        gpu = evener.inventory("gpu:0").used[0]
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(gpu.nvml_index)
        used = lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used
        before = used()
        evener.use_devices("gpu:0")
        import tensorflow as tf
        physical = tf.config.get_visible_devices("GPU")[0]
        assert tf.config.experimental.get_memory_growth(physical)
        with tf.device("GPU:0"):
            tf.reduce_sum(tf.ones([1000, 1000])).numpy()
        print(used() - before)
    """
    assert int(run_python(code).stdout.split()[-1]) < 2 * 2**30


def test_a_cap_above_the_memory_is_refused(
    run_python: Callable[..., subprocess.CompletedProcess],
) -> None:
    code = "import evener; evener.use_devices('gpu:0@10000GiB')"
    assert "[DEV-011]" in run_python(code, check=False).stderr


def test_the_demo_shows_the_memory_of_both(card: Card) -> None:
    caps, _ = card
    # This process keeps what it has taken: the demo gets a small part.
    spec = ",".join(f"gpu:0@{cap // 2**20 // 8}MiB" for cap in caps)
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "digits.py"), "--epochs", "2", "--devices", spec],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in use (peak)" in done.stdout
    for device in GPUS.devices:
        assert re.search(rf"^ ?{device} .*\(\d+\.\d [KMG]iB\)", done.stdout, re.MULTILINE)
