"""A model that its device could not hold trains from the host's memory.

The device is a process of its own, whose allocator refuses more than a cap; the host is
another one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

RunPython = Callable[..., CompletedProcess[str]]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CAP_BYTES = 40 * 2**20

PROGRAM = """
    import os, sys
    from side_by_side.apart import connect, devices_apart

    def train(owners, names):
        import evener, keras, numpy as np, tensorflow as tf
        keras.utils.set_random_seed(1)
        scope = tf.device("CPU:0")
        if names:
            stages = [(names[0], f"dense_{k}") for k in range(16)]
            scope = evener.Strategy(evener.Plan.pipeline(stages, owners=owners)).scope()
        with scope:
            stack = [keras.layers.Dense(1024, "tanh", name=f"dense_{k}") for k in range(16)]
            model = keras.Sequential([keras.Input((1024,)), *stack])
            model.compile(keras.optimizers.Adam(epsilon=1e-3), "mse")
        x = np.random.default_rng(0).normal(size=(3 * 16, 1024)).astype("float32")
        history = model.fit(x, np.tanh(x), batch_size=16, shuffle=False, verbose=0)
        print("trained", sum(weight.nbytes for weight in model.get_weights()))
        np.savez(os.environ["TEST_FILE"], *model.get_weights(), history.history["loss"])

    if __name__ == "__main__":
        if os.environ["TEST_OWNERS"] == "alone":
            train(None, [])
            sys.exit()
        owners = {"host": {"*": "host"}, "device": "sharded"}[os.environ["TEST_OWNERS"]]
        with devices_apart(1, cap_bytes=int(os.environ["TEST_CAP"])) as (device,):
            names = connect([device.call("address")])
            import tensorflow as tf
            try:
                train(owners, names)
            except tf.errors.ResourceExhaustedError:
                print("exhausted")
            print("peak", device.call("used")["peak"], flush=True)
        # The cluster would wait for the device, which is gone.
        os._exit(0)
"""


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_weights_that_do_not_fit_the_device_train_from_the_host(
    run_python: RunPython, tmp_path: Path
) -> None:
    told = {}
    for owners in ("alone", "device", "host"):
        env = {
            "PYTHONPATH": f"{BENCHMARKS}:{BENCHMARKS.parent / 'src'}",
            "TEST_OWNERS": owners,
            "TEST_CAP": str(CAP_BYTES),
            "TEST_FILE": str(tmp_path / f"{owners}.npz"),
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        told[owners] = run_python(PROGRAM, env=env, timeout=400).stdout.split()
    assert told["alone"][0] == "trained"
    assert told["device"][0] == "exhausted"
    assert (told["host"][0], told["host"][2]) == ("trained", "peak")
    num_bytes, peak = int(told["host"][1]), int(told["host"][3])
    assert peak <= CAP_BYTES < num_bytes / 1.5
    alone, host = (np.load(tmp_path / f"{name}.npz") for name in ("alone", "host"))
    for name in alone.files:
        np.testing.assert_allclose(alone[name], host[name], rtol=1e-5, atol=1e-5)
