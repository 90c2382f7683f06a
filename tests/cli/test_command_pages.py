"""The table on the page of a command names all its options, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from evener.cli import app

PAGES = Path(__file__).parents[2] / "docs" / "commands"
COMMANDS = typer.main.get_command(app).commands
ROW = re.compile(r"^\| (`-.*?) \|", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*)")


def named_on_page(text: str) -> set[str]:
    return {option for row in ROW.findall(text) for option in OPTION.findall(row)}


def options_of(name: str) -> set[str]:
    options = [each for each in COMMANDS[name].params if each.param_type_name == "option"]
    names = {name for each in options for name in (*each.opts, *each.secondary_opts)}
    # All have --help, and the lines above the table show -m.
    return names - {"--help", "-m"}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_page_names_the_options_of_its_command(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert named_on_page(text) == options_of(name)


def test_every_command_has_a_page() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {*COMMANDS, "conventions"}
