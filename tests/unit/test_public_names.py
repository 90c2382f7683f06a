from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import evener


def names_for_type_checkers() -> dict[str, str]:
    """The imports under ``if TYPE_CHECKING``: name -> module; ``"evener"`` has the packages."""
    tree = ast.parse(inspect.getsource(evener))
    blocks = (node for node in tree.body if isinstance(node, ast.If))
    (block,) = (node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING")
    return {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_the_list_the_table_and_the_imports_for_type_checkers_are_one() -> None:
    assert evener.__all__ == sorted(evener._HOMES)
    packages = dict.fromkeys(evener._PACKAGES, "evener")
    assert names_for_type_checkers() == {**packages, **evener._HOMES}


@pytest.mark.long
def test_packages_with_public_names_need_no_import_of_their_own(run_python) -> None:
    page = (Path(__file__).parents[2] / "docs/api.md").read_text(encoding="utf-8")
    packages = re.findall(r"^\| `evener\.(\w+)` \|", page, re.MULTILINE)
    assert sorted(packages) == sorted(evener._PACKAGES)
    code = f"""
        import evener
        assert set({packages}) <= set(dir(evener))
        print(*[getattr(evener, name).__name__ for name in {packages}])
        print(evener.report.Progress.__name__)
    """
    named = " ".join(f"evener.{name}" for name in packages)
    assert run_python(code).stdout.splitlines() == [named, "Progress"]


@pytest.mark.parametrize("name", evener.__all__)
def test_every_name_is_there(name: str) -> None:
    value = getattr(evener, name)
    assert value.__name__ == name
    assert inspect.getdoc(value), f"evener.{name} has no docstring"


def test_the_page_of_public_names_lists_all_of_them() -> None:
    page = (Path(__file__).parents[2] / "docs/api.md").read_text(encoding="utf-8")
    rows = page.partition("## evener\n")[2].partition("\n## ")[0].splitlines()
    named = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in rows if row.startswith("| `")]
    assert sorted(name for names in named for name in names) == evener.__all__


def test_dir_lists_the_public_names() -> None:
    assert set(evener.__all__) <= set(dir(evener))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'evener' has no attribute 'Strateggy'"):
        evener.Strateggy  # noqa: B018


def test_importing_evener_costs_nothing(run_python) -> None:
    code = """
        import sys
        before = set(sys.modules)
        import evener
        evener.__version__, evener.EvenerError, dir(evener)
        print(sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
    """
    loaded = run_python(code).stdout
    for heavy in ("tensorflow", "keras", "numpy", "rich", "typer"):
        assert repr(heavy) not in loaded


def test_importing_the_plan_does_not_import_tensorflow(run_python) -> None:
    code = """
        import sys
        import evener
        evener.Plan
        print(*sorted(name for name in ("tensorflow", "keras", "numpy") if name in sys.modules))
    """
    assert run_python(code).stdout.strip() == ""
