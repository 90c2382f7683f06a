"""Commands that texts of the source name: with options that the command has, before the script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import evener
from evener.cli import app

SOURCES = Path(evener.__file__).parent
COMMANDS: Any = get_command(app)
# Options may follow each other, with values; the script ends them.
VALUE = r"(?:[ =](?!-)(?:[A-Z]+\b|[\w./:-]+\.json|\d+|auto|even|cpu:2|STATED))?"
NAMED = re.compile(
    rf"evener (?P<name>[a-z]+)(?P<before>(?: --?[a-z][\w-]*{VALUE}| STATED)*)"
    r"(?P<after> (?:SCRIPT|FILE|[\w./]+\.py)(?: --?[a-z][\w-]*)*)?"
)


def texts() -> Iterator[tuple[str, str]]:
    """Yield the texts of the source, with STATED in the place of what is put into them."""
    for file in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            where = f"{file.relative_to(SOURCES)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                parts = [v.value if isinstance(v, ast.Constant) else "STATED" for v in node.values]
                yield where, "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield where, node.value


def mistakes(text: str) -> list[str]:
    found: list[str] = []
    for match in NAMED.finditer(text):
        command = COMMANDS.commands.get(match["name"])
        if command is None:
            continue
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        options = re.findall(r" (--?[a-z][\w-]*)", match["before"])
        found += [f"{match[0]!r}: no option {name}" for name in options if name not in known]
        takes_script = not command.context_settings.get("allow_interspersed_args", True)
        if takes_script and re.search(r" --?[a-z]", match["after"] or ""):
            found.append(f"{match[0]!r}: an option behind the script is the script's")
    return found


def test_commands_in_texts_are_those_that_run() -> None:
    named = [(where, text) for where, text in texts() if "evener " in text]
    assert len(named) > 50
    assert [f"{where}: {each}" for where, text in named for each in mistakes(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "evener plan SCRIPT --save-profile FILE",
        "evener run --report-files FILE train.py",
        "evener run --plan STATED --no-such train.py",
    ],
)
def test_wrong_commands_are_found(text: str) -> None:
    assert mistakes(text)
