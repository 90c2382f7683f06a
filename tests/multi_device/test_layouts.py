"""The checks for two real GPUs, here on two stand-ins."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu.checks import CHECKS
from gpu.ground import STAND_INS, caps_for, spec_for


@pytest.mark.sampled(12)
@pytest.mark.parametrize("check", CHECKS)
def test_on_two_stand_ins(check: Callable[..., None], tmp_path: Path) -> None:
    needs_folder = "folder" in inspect.signature(check).parameters
    check(STAND_INS, **({"folder": tmp_path} if needs_folder else {}))


@pytest.mark.parametrize(
    ("free_gibibytes", "spec"),
    [(24, "gpu:0@10240MiB,gpu:0@5120MiB"), (8, "gpu:0@4096MiB,gpu:0@2048MiB")],
)
def test_a_card_is_cut_by_what_is_free(free_gibibytes: int, spec: str) -> None:
    assert spec_for(caps_for(free_gibibytes * 2**30)) == spec
