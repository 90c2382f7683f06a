"""The seed of TensorFlow's generators, and seeds of NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.python.eager import context

from evener._tf_private.patches import Patch

_NUMPY = Patch(
    "unseeded generators of NumPy",
    "numpy.random:default_rng",
    why="Such a generator begins with a seed of the operating system, another one in each worker.",
    if_it_changes="Programs that draw their data by it are refused, because the data differ.",
)


def global_seed() -> int | None:
    """Return the seed that `tf.random.set_seed` has set, or None.

    Why: there is no public way to read it. If it changes: workers replace a seed that the program
    has set by one of their own.
    """
    return context.global_seed()


def seed_new_generators(draw: Callable[[], Any]) -> None:
    """Let generators that `numpy.random.default_rng` makes without a seed begin with a drawn one.

    Args:
        draw: Function that returns the next seed.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def default_rng(seed: Any = None) -> Any:
            return original(draw() if seed is None else seed)

        default_rng.__doc__ = original.__doc__
        return default_rng

    _NUMPY.apply(wrap)
