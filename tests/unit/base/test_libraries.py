from __future__ import annotations

import ast
import gc
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from evener.base.libraries import (
    SUPPORTED,
    Supported,
    _backend,
    check_backend,
    check_installed,
    check_is_there,
    check_versions,
    paused_collector,
)
from evener.errors import EngineError, RunError

ROOT = Path(__file__).parents[3]
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


def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it() -> None:
    missing = Supported(title="No", packages=("no-such-package",), first=(1, 0), last=(1, 2))
    with pytest.raises(EngineError) as caught:
        check_is_there(missing)
    assert caught.value.code == "ENG-098"
    assert "No is not installed" in caught.value.what
    assert f"{sys.executable} -m pip install 'no-such-package>=1.0,<1.3'" in caught.value.fix


def test_another_backend_of_keras_is_refused() -> None:
    check_backend("")
    check_backend("tensorflow")
    with pytest.raises(RunError, match=r"\[RUN-004\] The backend of Keras is torch\."):
        check_backend("torch")


@pytest.mark.parametrize(
    ("environ", "text", "backend"),
    [
        ({}, None, ""),
        ({}, "{", ""),
        ({}, "[]", ""),
        ({}, '{"backend": "jax"}', "jax"),
        ({"KERAS_BACKEND": "torch"}, '{"backend": "jax"}', "torch"),
    ],
)
def test_the_backend_is_known_before_keras_is_imported(
    environ: dict[str, str],
    text: str | None,
    backend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    if text is not None:
        (tmp_path / "keras.json").write_text(text, encoding="utf-8")
    assert _backend({"KERAS_HOME": str(tmp_path), **environ}) == backend


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


def test_the_examples_import_nothing_that_an_installation_does_not_bring() -> None:
    """With the extra for examples; names of distributions and of their modules may differ."""
    required = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["examples"]]
    named = {re.split(r"[<>=\\[]", requirement)[0] for requirement in required}
    modules = {"scikit-learn": "sklearn", "pyyaml": "yaml", "nvidia-ml-py": "pynvml"}
    brought = {modules.get(name, name) for name in named} | sys.stdlib_module_names | {"evener"}
    files = list((ROOT / "examples").rglob("*.py"))
    beside = {file.stem for file in files}
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found = {
            name.partition(".")[0]
            for node in ast.walk(tree)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert found <= brought | beside, f"{file.name}: {found - brought - beside}"


@pytest.fixture
def collector_as_before() -> Iterator[None]:
    yield
    gc.enable()


class Cycle:
    def __init__(self) -> None:
        self.own = self


@pytest.mark.usefixtures("collector_as_before")
def test_nothing_is_collected_inside_and_what_is_left_is_searched_no_more() -> None:
    with paused_collector():
        assert not gc.isenabled()
        kept = Cycle()
    assert gc.isenabled()
    assert all(each is not kept for each in gc.get_objects())
    with pytest.raises(ImportError), paused_collector():
        raise ImportError
    assert gc.isenabled(), "a failed import leaves it on"
    gc.disable()
    with paused_collector():
        pass
    assert not gc.isenabled(), "a collector that was off stays off"
