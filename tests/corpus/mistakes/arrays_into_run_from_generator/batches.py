import numpy as np


def batches(size, seed):
    rng = np.random.default_rng(seed)
    for _ in range(6):
        x = rng.normal(size=(size, 5)).astype(np.float32)
        yield x, x @ np.ones((5, 1), np.float32)
