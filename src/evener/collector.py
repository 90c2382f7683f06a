"""Pauses Python's garbage collector where modules are imported."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Collect no garbage inside.

    The imports of TensorFlow and Keras make objects by the hundred thousand and leave no garbage;
    a fifth of their time is spent in looking for some, and as much again when the process ends.
    For commands only, before the user's program begins: what it had made would never be freed if
    it is a part of a cycle.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # Nor later: what is imported stays until the process ends.
        gc.freeze()
        if was_enabled:
            gc.enable()
