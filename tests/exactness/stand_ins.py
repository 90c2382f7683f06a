"""Five logical CPUs that stand in for devices, and the devices that a reference runs on."""

from __future__ import annotations

import tensorflow as tf

NUM_STAND_INS = 5


def make_stand_ins() -> tuple[str, ...]:
    """Cut the CPU into five logical devices, unless somebody did it already."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * NUM_STAND_INS
        )
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(NUM_STAND_INS)
    num_devices = len(tf.config.list_logical_devices("CPU"))
    if num_devices < NUM_STAND_INS:
        raise RuntimeError(
            f"the tests need {NUM_STAND_INS} logical CPUs, TensorFlow was started with "
            f"{num_devices}; make them before the first operation runs"
        )
    return tuple(f"cpu:{index}" for index in range(NUM_STAND_INS))
