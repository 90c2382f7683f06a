"""Every `python` and `console` block of the pages runs, from top to bottom.

A Python block with a title is a file, which later commands use; the others are programs, and one
that does not import evener goes on from the one before. Commands begin with ``$``; what follows is
what they print, where ``...`` stands for anything. On the start page, which shows what was printed
once, figures are as the machine measures them. Sessions of Python run as doctests.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands import environment

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
FIGURE = re.compile(
    r"(?:\(?[\d.,/]*\d[%x]?(?:[mµ]?s(?:/step)?)?[),;.]?|(?:[mµ]?s|[KMG]?i?B)[),;.]?|[─━]+)"
)
VARYING_LINE = re.compile(
    r"^(?:What limits it|evener: shares|Shares changed|  step \d|evener: .PROF-|  (?:Why|Fix):)"
    r".*\n",
    re.MULTILINE,
)
OF_MACHINE = re.compile(r"Intel.*|Processor|\S+/evener-launch-\S+|process \d+;")
PAGES = (
    "idle_gpu",
    "index",
    "unequal_gpus",
    "not_faster",
    "from_horovod",
    "from_accelerate",
    "custom_loops",
    "pipelines",
    "audit",
    "checkpoints",
    "clusters",
    "exactness",
    "pinning",
    "planning",
    "progress",
    "seeing",
    "steps",
)
NOT_RUN = {
    "benchmarks": "commands of hours, each named with its figures",
    "devices": "an example for GPUs with numbers",
    "gpu": "commands for a machine with a GPU",
    "plan": "tests/unit/plan/test_plan.py runs its examples",
}


def run(command: list[str], folder: Path) -> tuple[int, str]:
    environ = {"EVENER_DEVICES": "cpu:2", "EVENER_VERIFY": "", "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment(folder, COLUMNS="80", **environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout


def is_like(shown: str, printed: str, *, is_measured: bool = False) -> bool:
    """Whether the words are those that are shown, with anything in place of ``...``.

    Of measured words figures, units, bars and what depends on the machine may be others.
    """
    if is_measured:
        shown, printed = VARYING_LINE.sub("", shown), VARYING_LINE.sub("", printed)
        shown = OF_MACHINE.sub("...", shown)

    def pattern(word: str) -> str:
        if word == "...":
            return ".*"
        return FIGURE.pattern if is_measured and FIGURE.fullmatch(word) else re.escape(word)

    words = map(pattern, shown.split())
    return re.fullmatch(r"\s*".join(["", *words, ""]), printed, re.DOTALL) is not None


def run_commands(block: str, folder: Path, *, is_measured: bool = False) -> int:
    commands = COMMAND.findall(block)
    for command, shown in commands:
        program, *words = shlex.split(command)
        assert program in ("evener", "python")
        code, printed = run(["-m", program, *words] if program == "evener" else words, folder)
        assert code == int("[DOC-" in shown), printed
        assert is_like(shown, printed, is_measured=is_measured), printed
    return len(commands)


def run_page(text: str, folder: Path, *, is_measured: bool = False) -> int:
    num_run, program = 0, ""
    for kind, title, code in BLOCK.findall(text):
        if kind == "console":
            num_run += run_commands(code, folder, is_measured=is_measured)
        elif kind == "python" and title:
            (folder / title).write_text(code, encoding="utf-8")
        elif kind == "python" and not code.startswith(">>>"):
            program = code if "import evener" in code else program + code
            (folder / "program.py").write_text(program, encoding="utf-8")
            failed, printed = run(["program.py"], folder)
            assert not failed, printed
            num_run += 1
    if "\n>>> " in text:
        (folder / "page.md").write_text(text, encoding="utf-8")
        failed, printed = run(["-m", "doctest", "page.md"], folder)
        assert not failed, printed
        num_run += 1
    return num_run


def has_blocks(path: Path) -> bool:
    kinds = {kind for kind, _, _ in BLOCK.findall(path.read_text(encoding="utf-8"))}
    return bool(kinds & {"console", "python"})


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_it_stands(page: str, tmp_path: Path) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert run_page(text, tmp_path, is_measured=page == "index")


def test_every_page_with_blocks_is_run_or_says_why_not() -> None:
    pages = {path.stem for path in DOCS.glob("*.md") if has_blocks(path)}
    assert pages == {*PAGES, *NOT_RUN}


@pytest.mark.parametrize(
    "page",
    [
        "```python\nraise SystemExit(1)\n```\n",
        "```console\n$ evener doctor --explain DOC-201\nnever printed\n```\n",
        "```console\n$ evener doctor absent.py\n...\n```\n",
        "```python\n>>> 1 + 1\n3\n\n```\n",
        "```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n",
    ],
)
def test_a_page_that_does_not_run_fails(page: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run_page(page, tmp_path)


@pytest.mark.parametrize(
    ("printed", "is_alike"),
    [
        ("cpu:0  61.2 %  9 µs ━━ idle", True),
        ("cpu:1  50.0 %  3.1 ms ━ idle", False),
        ("cpu:0  50.0 %  3.1 ms ━ busy", False),
        ("cpu:0  50.0 %  3.1 ms ━", False),
    ],
)
def test_measured_words_have_other_figures(printed: str, is_alike: bool) -> None:
    assert is_like("cpu:0 50.0 % 3.1 ms ━ idle", printed, is_measured=True) is is_alike
