"""The checks for two devices, on two GPUs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu.checks import CHECKS
from gpu.ground import GPUS


@pytest.mark.parametrize("check", CHECKS)
def test_on_two_gpus(check: Callable[..., None], tmp_path: Path) -> None:
    needs_folder = "folder" in inspect.signature(check).parameters
    check(GPUS, **({"folder": tmp_path} if needs_folder else {}))
