"""All commands follow one table, docs/commands/conventions.md, and their pages name all options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from evener.cli import app
from evener.cli.conventions import args_of_script
from evener.errors import RunError
from evener.run.script import Script

DOCS = Path(__file__).parents[2] / "docs/commands"
COMMANDS = typer.main.get_command(app).commands
WITH_SCRIPT = sorted(set(COMMANDS) - {"devices", "report"})


@dataclass(frozen=True, kw_only=True)
class Row:
    script: str
    module: str
    devices: str
    as_json: str


def rows() -> dict[str, Row]:
    text = (DOCS / "conventions.md").read_text(encoding="utf-8")
    found = {}
    for line in re.findall(r"^\| \[`.*$", text, re.MULTILINE):
        name, script, module, devices, _, as_json, _ = (
            cell.strip() for cell in line.strip("|").split("|")
        )
        (command,) = re.findall(r"`(\w+)`\]", name)
        found[command] = Row(script=script, module=module, devices=devices, as_json=as_json)
    return found


def options(command: str) -> set[str]:
    return {name for parameter in COMMANDS[command].params for name in parameter.opts}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_has_what_its_row_says(command: str) -> None:
    row = rows()[command]
    takes_args = "args" in options(command)
    assert (row.script != "-", row.module == "yes") == (takes_args, takes_args)
    assert ("-m" in options(command)) == takes_args
    assert ("--devices" in options(command)) == (row.devices != "-")
    assert ("--json" in options(command)) == (row.as_json == "yes")
    settings = COMMANDS[command].context_settings
    assert settings.get("allow_interspersed_args", True) != takes_args
    page = (DOCS / f"{command}.md").read_text(encoding="utf-8")
    assert not takes_args or "(conventions.md)" in page


def invoked(command: str, *words: str) -> RunError:
    given = {"launch": ["--workers", "2"]}.get(command, [])
    result = CliRunner().invoke(app, [command, *given, *words])
    assert isinstance(result.exception, RunError), result.output
    return result.exception


@pytest.mark.parametrize("command", WITH_SCRIPT)
def test_an_option_behind_the_script_is_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("x = 1", encoding="utf-8")
    option = max(name for name in options(command) if name.startswith("--"))
    error = invoked(command, "train.py", option)
    assert error.code == "RUN-022"
    assert error.what.startswith(f"{option} stands after train.py")
    assert f"evener {command} {option} ... train.py" in error.fix
    # A module is found as Python finds it.
    assert invoked(command, "-m", "no.such.module").code == "RUN-021"


@pytest.mark.parametrize("command", WITH_SCRIPT)
def test_what_follows_a_separator_is_the_scripts(command: str) -> None:
    context = typer.Context(COMMANDS[command], info_name=command)
    script = Script(given="train.py", path="/train.py", source="--lr")
    option = max(name for name in options(command) if name.startswith("--"))
    assert args_of_script(context, ["--", option, "--"], script) == [option, "--"]
    assert args_of_script(context, ["a", "--", "--lr=1"], script) == ["a", "--", "--lr=1"]
    with pytest.raises(RunError, match="RUN-022"):
        args_of_script(context, ["a", f"{option}=3"], script)


ROW = re.compile(r"^\| (`-.*?) \|", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*)")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_page_names_the_options_of_its_command(name: str) -> None:
    chosen = [each for each in COMMANDS[name].params if each.param_type_name == "option"]
    names = {option for each in chosen for option in (*each.opts, *each.secondary_opts)}
    rows = ROW.findall((DOCS / f"{name}.md").read_text(encoding="utf-8"))
    # All have --help, and the lines above the table show -m.
    assert {option for row in rows for option in OPTION.findall(row)} == names - {"--help", "-m"}


def test_every_command_has_a_page_and_a_row() -> None:
    assert {path.stem for path in DOCS.glob("*.md")} == {*COMMANDS, "conventions"}
    assert sorted(rows()) == sorted(COMMANDS)
