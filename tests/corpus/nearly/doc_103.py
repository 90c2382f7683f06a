# machine: 1 GPU
# package: tensorflow 2.21.0
# package: nvidia-cudnn-cu12 9.3.0.75
# driver: 550.54.15
"""The packages of CUDA 12 and a driver that is new enough."""

import keras
import numpy as np

model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(12, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.rand(256, 6)
model.fit(x, x.sum(1), batch_size=64, epochs=1)
