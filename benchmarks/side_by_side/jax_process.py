"""Keras on JAX, in an environment that has neither TensorFlow nor evener; run as a program.

It trains one problem on the first devices of the host for some seconds and prints its samples per
second. Each device of JAX's host platform is given one core.
"""

from __future__ import annotations

import json
import os
import sys
import time

_WARM_UP = 4


def main(name: str, num_devices: int, seconds: float) -> None:
    """Print ``{"samples_per_second": ...}``."""
    cores = sorted(os.sched_getaffinity(0))[:num_devices]
    os.sched_setaffinity(0, cores)
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={num_devices}"
    import keras
    import numpy as np

    from side_by_side.problems import PROBLEMS, SEED, make_loss, make_optimizer

    problem = PROBLEMS[name]
    keras.utils.set_random_seed(1)
    if num_devices > 1:
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    model = problem.build()
    model.compile(make_optimizer("adam"), make_loss())
    num_samples = problem.batch_size * problem.num_batches
    x, y = problem.data(np.random.default_rng(SEED), num_samples)
    times: list[float] = []

    class Clock(keras.callbacks.Callback):
        """Notes when each epoch ended; ends training when there is enough."""

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            times.append(time.perf_counter())
            if epoch >= _WARM_UP and times[-1] - times[_WARM_UP - 1] > seconds:
                self.model.stop_training = True

    model.fit(
        x,
        y,
        batch_size=problem.batch_size,
        epochs=10_000,
        shuffle=False,
        verbose=0,
        callbacks=[Clock()],
    )
    taken = times[-1] - times[_WARM_UP - 1]
    print(json.dumps({"samples_per_second": num_samples * (len(times) - _WARM_UP) / taken}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
