"""Parameters of which some are left to the long campaign."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import pytest


def usually(values: Sequence[Any], usual: Container[Any]) -> list[Any]:
    """Return parameters for a test; those that are not usual are marked as long."""
    return [v if v in usual else pytest.param(v, marks=pytest.mark.long) for v in values]
