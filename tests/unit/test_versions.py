from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from evener.errors import EngineError
from evener.versions import SUPPORTED, check_installed, check_versions

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize(
    "installed",
    [
        {"tensorflow": "2.20.0", "keras": "3.12.0"},
        {"tensorflow": "2.21.3", "keras": "3.15.9"},
        {"tensorflow-cpu": "2.21.0", "keras": "3.13.2"},
        # Under a name that is not known, or in a form that is not: left to the person.
        {"tensorflow": "from source"},
        {},
    ],
)
def test_versions_in_the_range(installed: dict[str, str]) -> None:
    check_versions(installed)


@pytest.mark.parametrize(
    ("installed", "named"),
    [
        ({"tensorflow": "2.19.1", "keras": "3.15.0"}, "TensorFlow 2.19.1"),
        ({"tensorflow": "2.22.0rc0", "keras": "3.15.0"}, "TensorFlow 2.22.0rc0"),
        ({"tensorflow-cpu": "2.9.3"}, "TensorFlow 2.9.3"),
        ({"tensorflow": "2.21.0", "keras": "3.11.3"}, "Keras 3.11.3"),
        ({"tensorflow": "2.21.0", "keras": "3.16.0.dev1"}, "Keras 3.16.0.dev1"),
        ({"tensorflow": "2.21.0", "keras": "2.15.0"}, "Keras 2.15.0"),
    ],
)
def test_versions_outside_of_the_range(installed: dict[str, str], named: str) -> None:
    with pytest.raises(EngineError) as caught:
        check_versions(installed)
    assert caught.value.code == "ENG-091"
    assert caught.value.what == f"evener does not work with {named}."
    assert "TensorFlow 2.20 to 2.21 and Keras 3.12 to 3.15" in caught.value.why
    assert caught.value.fix == "pip install 'tensorflow>=2.20,<2.22' 'keras>=3.12,<3.16'"


def test_what_is_installed_here_is_in_the_range() -> None:
    check_installed()


def test_the_ranges_are_those_of_the_package() -> None:
    for supported in SUPPORTED:
        assert supported.requirement in PROJECT["dependencies"]
    tensorflow = SUPPORTED[0].requirement.removeprefix("tensorflow")
    assert PROJECT["optional-dependencies"]["gpu"] == [f"tensorflow[and-cuda]{tensorflow}"]


@pytest.mark.parametrize("name", ["Strategy", "distribute", "pin"])
def test_the_versions_are_checked_before_the_engine_is_imported(name: str, run_python) -> None:
    code = f"""
        import sys
        from importlib import metadata
        metadata.version = lambda name: "2.19.0" if name == "tensorflow" else "3.15.0"
        import evener
        evener.Plan
        try:
            evener.{name}
        except evener.EngineError as error:
            print(error.code, "tensorflow" in sys.modules)
    """
    assert run_python(code).stdout.split() == ["ENG-091", "False"]
