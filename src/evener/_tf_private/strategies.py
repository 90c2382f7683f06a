"""Keras under a strategy of evener, which it treats as one device."""

from __future__ import annotations

from typing import Any

from evener._tf_private.functions import let_compiled_functions_follow
from evener._tf_private.models import build_from_shapes, compile_parts
from evener._tf_private.optimizers import let_optimizers_follow
from evener._tf_private.random_numbers import draw_as_one_device
from evener._tf_private.tracebacks import shorten_tracebacks


def patch_keras(kind: type[Any]) -> None:
    """Let Keras treat strategies of a class as one device. Safe to call again."""
    let_optimizers_follow(kind)
    build_from_shapes(kind)
    compile_parts(kind)
    let_compiled_functions_follow(kind)
    draw_as_one_device(kind)
    shorten_tracebacks()
