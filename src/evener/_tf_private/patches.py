"""Replacements of functions of TensorFlow and Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns the replacement of a function."""
