from __future__ import annotations

from pathlib import Path

import pytest

from evener.devices.machine import NvmlMachine
from evener.doctor import surroundings, surroundings_here


def test_the_environment_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert surroundings_here().environment["CUDA_VISIBLE_DEVICES"] == "1"


def test_the_driver_is_asked_where_there_may_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = NvmlMachine(driver_version="550.54.15")
    monkeypatch.setattr(surroundings.Nvml, "read_machine", lambda self: machine)
    monkeypatch.setattr(surroundings, "_DRIVER", (str(tmp_path / "missing"),))
    assert surroundings_here().machine == NvmlMachine()
    monkeypatch.setattr(surroundings, "_DRIVER", (str(tmp_path),))
    assert surroundings_here().machine is machine
