"""Names of steps in messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from evener.own_code import is_own, short_path


def step_name(step: Callable[..., Any], *, trains: bool) -> str:
    """Return the name of a step: the function with its line, or the kind of step of Keras's.

    Args:
        step: Step.
        trains: Whether it writes a variable that is trained.
    """
    function = inspect.unwrap(step)
    function = getattr(function, "python_function", function)
    code = getattr(function, "__code__", None)
    if code is not None and is_own(code.co_filename):
        name = code.co_name if code.co_name != "<lambda>" else "the step"
        return f"{name} ({short_path(code.co_filename)}:{code.co_firstlineno})"
    return "the training step" if trains else "a step that does not train"
