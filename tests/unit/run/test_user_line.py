from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

import evener
from evener.base.user_code import is_own
from evener.run import script as module
from evener.run.script import UserLine, user_line


@pytest.mark.parametrize(
    "file",
    [
        f"{sysconfig.get_path('stdlib')}/runpy.py",
        f"{sysconfig.get_path('purelib')}/keras/src/models/model.py",
        "/home/me/.local/lib/python3.11/site-packages/mine.py",
        "/usr/lib/python3/dist-packages/mine.py",
        "/tmp/__autograph_generated_fileabc.py",
        "<frozen runpy>",
        evener.__file__,
        module.__file__,
    ],
)
def test_libraries_and_evener_are_not_own(file: str) -> None:
    assert not is_own(file)


def test_a_file_beside_a_virtual_environment_is_own() -> None:
    assert is_own(str(Path(sysconfig.get_path("purelib")).parents[3] / "train.py"))
    assert is_own(__file__)


def test_the_user_line_is_the_line_of_the_caller() -> None:
    here = user_line()
    assert here is not None
    assert (here.path, here.function) == (__file__, "test_the_user_line_is_the_line_of_the_caller")
    assert (
        here.as_in_a_traceback() == f'  File "{__file__}", line {here.number}, in {here.function}'
    )


def test_the_path_of_a_line_is_relative_where_it_can_be(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(UserLine(path=str(tmp_path / "train.py"), number=3)) == "train.py:3"
    assert str(UserLine(path="/elsewhere/train.py", number=3)) == "/elsewhere/train.py:3"
