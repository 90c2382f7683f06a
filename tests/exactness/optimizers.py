"""The optimizers of the law.

Adam's and AdamW's epsilon is 1e-3 and not 1e-7: where a gradient is near zero, they divide
rounding by rounding, and the first steps are then plus or minus the whole learning rate.
"""

from __future__ import annotations

from collections.abc import Callable

import keras

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01, epsilon=1e-3),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.02, epsilon=1e-3),
    "lion": lambda: keras.optimizers.Lion(0.003),
}
