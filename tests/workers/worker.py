"""Program of one worker, or of one device: runs steps of the corpus and saves what they give.

Its argument is a JSON object: the names of the steps, the shares, the number of devices, the number
of this worker (None for one device) and the folder for the results. `TF_CONFIG` names the workers.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf


def refuse_mesh() -> None:
    """Let sums of gradients go over TensorFlow's collectives alone."""
    from evener.workers.group import Group

    reduce = Group.reduce

    def checked(own: Group, label: str, arrays: list[np.ndarray], combine: str) -> Any:
        assert arrays[0].dtype != np.float32, f"{label} goes over the mesh"
        return reduce(own, label, arrays, combine)

    Group.reduce = checked


def main(options: dict[str, Any]) -> None:
    index, count = options["index"], options["devices"]
    cpus = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    make_step: Any = tf.function
    if index is not None:
        import evener

        devices = [f"cpu:{number}" for number in range(count)]
        make_step = functools.partial(
            evener.distribute, devices=devices, shares=options["shares"], verify=False
        )
        # The workers meet before the first tensor.
        make_step(lambda x: x)
        if os.environ.get("EVENER_EXCHANGE") == "tensorflow":
            refuse_mesh()

    from exactness.steps.case import CASES, SEED, graph_optimizers_of
    from exactness.steps.runs import as_arrays

    for number, name in enumerate(options["names"]):
        built = CASES[name]()
        is_given = index is not None and built.in_axes is not None
        step = make_step(built.step, **({"in_axes": built.in_axes} if is_given else {}))
        rng = np.random.default_rng(SEED)
        arrays = []
        with graph_optimizers_of(name):
            for size in built.sizes:
                arrays += as_arrays(step(*built.batch(rng, size)))
        arrays += as_arrays(list(built.variables))
        np.savez(Path(options["folder"]) / f"{index}_{number}.npz", *arrays)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
