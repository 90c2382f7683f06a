"""Files that count as a person's own."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
import tensorflow as tf

import evener
from evener.base.user_code import is_own


@pytest.mark.parametrize("package", [evener, keras, tf])
def test_libraries_are_not(package: object) -> None:
    assert not is_own(getattr(package, "__file__", ""))


def test_what_pip_installed_in_a_folder_of_any_name_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "tensorflow-2.21.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: tensorflow\nVersion: 2.21.0\n")
    (info / "RECORD").write_text("tensorflow/python/ops.py,,\n")
    file = str(tmp_path / "tensorflow" / "python" / "ops.py")
    assert is_own(file)
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_own(file)
    # A project may hold what it needs.
    assert is_own(str(tmp_path / "train.py"))
    assert is_own(str(tmp_path / "models" / "net.py"))


def test_a_folder_on_the_path_without_packages_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert is_own(str(tmp_path / "train.py"))
