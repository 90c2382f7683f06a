from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from evener.devices.machine import NvmlMachine
from evener.doctor import surroundings, surroundings_here


def test_the_packages_that_matter_are_found() -> None:
    packages = surroundings_here().packages
    assert packages["tensorflow"] == importlib.metadata.version("tensorflow")
    assert packages["keras"] == importlib.metadata.version("keras")
    assert "pytest" not in packages


def test_names_are_written_in_one_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia_cudnn_cu13-9.1.0", "Tensorflow_CPU-2.21.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path), "", "/nowhere"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    here = surroundings_here()
    assert here.packages == {"nvidia-cudnn-cu13": "9.1.0", "tensorflow-cpu": "2.21.0"}
    assert here.environment["CUDA_VISIBLE_DEVICES"] == "1"


def test_the_driver_is_asked_where_there_may_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = NvmlMachine(driver_version="550.54.15")
    monkeypatch.setattr(surroundings.Nvml, "read_machine", lambda self: machine)
    monkeypatch.setattr(surroundings, "_DRIVER", (str(tmp_path / "missing"),))
    assert surroundings_here().machine == NvmlMachine()
    monkeypatch.setattr(surroundings, "_DRIVER", (str(tmp_path),))
    assert surroundings_here().machine is machine
