# machine: 2 GPUs
"""Names of logical devices; the physical ones are only printed and configured."""

import numpy as np
import tensorflow as tf

for gpu in tf.config.list_physical_devices("GPU"):
    print("found", gpu.name)
    tf.config.experimental.set_memory_growth(gpu, True)

devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
matrix = tf.constant(np.random.rand(64, 64).astype("float32"))

products = []
for device in devices:
    with tf.device(device.name):
        products.append(tf.linalg.matmul(matrix, matrix))
print([product.device for product in products])
