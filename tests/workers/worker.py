"""Program of one worker, or of one device: runs steps of the corpus and saves what they give.

Its argument is a JSON object: the names of the steps, the shares, the devices of each worker, the
addresses, the number of this worker (None for one device) and the folder for the results.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf


def main(options: dict[str, Any]) -> None:
    """Run the steps of the options."""
    index, per_worker = options["index"], options["per_worker"]
    count = 1 if index is None else per_worker[index]
    cpus = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    make_step: Any = tf.function
    if index is not None:
        from evener.engine.pipeline.layout import Layout
        from evener.plan import Replica, Stage
        from evener.strategy.distributed_step import DistributedStep
        from evener.strategy.step_settings import StepSettings
        from evener.workers import join_workers

        group = join_workers(options["addresses"], index, timeout_seconds=120)
        names = [
            f"worker:{worker}/cpu:{cpu}"
            for worker, num_cpus in enumerate(per_worker)
            for cpu in range(num_cpus)
        ]
        replicas = tuple(Replica(share=1, stages=(Stage(device=name),)) for name in names)
        layout = Layout(replicas, group=group)

        def make_step(step: Any, **axes: Any) -> Any:
            settings = StepSettings(layout=layout, verify=False)
            return DistributedStep(step, settings, shares=options["shares"], **axes)

    import exactness.steps
    from exactness.steps.case import CASES, SEED
    from exactness.steps.test_corpus_runs import as_arrays

    for module in pkgutil.iter_modules(exactness.steps.__path__):
        if not module.name.startswith("test"):
            importlib.import_module(f"exactness.steps.{module.name}")
    for number, name in enumerate(options["names"]):
        built = CASES[name]()
        is_given = index is not None and built.in_axes is not None
        step = make_step(built.step, **({"in_axes": built.in_axes} if is_given else {}))
        rng = np.random.default_rng(SEED)
        arrays = []
        for size in built.sizes:
            arrays += as_arrays(step(*built.batch(rng, size)))
        arrays += as_arrays(list(built.variables))
        np.savez(Path(options["folder"]) / f"{index}_{number}.npz", *arrays)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    sys.stdout.flush()
    # TensorFlow's servers would wait for each other.
    os._exit(0)
