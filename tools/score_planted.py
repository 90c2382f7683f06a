"""Score `evener doctor` on planted faults: recall by group and kind, first findings, false alarms.

``.venv/bin/python tools/score_planted.py --store FOLDER`` plants each fault of
``tests/corpus/planted`` into its program, runs the doctor on the result, once as it is and once
with ``--no-run``, and compares the codes of its findings with those that the kind of the fault
accepts (``kinds.toml``). What the doctor said is kept in FOLDER, and no case runs twice. The
README of the collection says how it is split into a seen and an unseen part.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import hashlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

COLLECTION = Path(__file__).parents[1] / "tests/corpus/planted"
CLEAN = "clean"
DOCTOR = f"{shlex.quote(str(Path(sys.executable).with_name('evener')))} doctor --json"
# Options added to the command, by the name of the mode.
MODES = {"running": (), "reading": ("--no-run",)}
PARTS = ("seen", "unseen", "strict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Planted fault, or a program without one.

    Args:
        program: Name of the program, without ``.py``.
        kind: Kind of the fault; "clean" for the program without a fault.
        fact: Fact on which the first finding should rest.
        fix: Sentence that mends it.
        edits: Text to replace, which is in the program exactly once, and its replacement.
    """

    program: str
    kind: str
    fact: str = ""
    fix: str = ""
    edits: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Program and kind: no program has two faults of one kind."""
        return f"{self.program}--{self.kind}"

    def planted(self, text: str) -> str:
        """Return the program's text with the fault.

        Raises:
            ValueError: A text to replace is not there exactly once.
        """
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: in the program {text.count(old)} times: {old!r}")
            text = text.replace(old, new)
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Findings of the doctor for one case.

    Args:
        findings: Code and severity of each finding, in the order of the doctor.
        seconds: Seconds that the doctor took.
        problem: Last words on standard error if it printed no JSON; empty otherwise.
    """

    findings: tuple[tuple[str, str], ...]
    seconds: float
    problem: str


def read_faults(folder: Path) -> list[Fault]:
    """Read the faults of a collection, each program's after the program without a fault."""
    faults = []
    for path in sorted((folder / "programs").glob("*.py")):
        faults.append(Fault(program=path.stem, kind=CLEAN))
        listed = folder / "faults" / f"{path.stem}.toml"
        for table in tomllib.loads(listed.read_text("utf-8"))["fault"] if listed.exists() else ():
            numbers = [key.removeprefix("old") for key in table if key.startswith("old")]
            edits = tuple((table[f"old{n}"], table[f"new{n}"]) for n in numbers)
            words = {key: table[key] for key in ("kind", "fact", "fix")}
            faults.append(Fault(program=path.stem, edits=edits, **words))
    return faults


def first_half(names: Iterable[str]) -> set[str]:
    """Return the half of the names whose SHA-256 comes first."""
    in_order = sorted(set(names), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return set(in_order[: len(in_order) // 2])


def parts_of(fault: Fault, programs: set[str], kinds: set[str]) -> tuple[str, ...]:
    """Return the parts that a case belongs to, given the seen programs and the seen kinds."""
    is_other_program, is_other_kind = fault.program not in programs, fault.kind not in kinds
    if fault.kind == CLEAN:
        return ("unseen", "strict") if is_other_program else ("seen",)
    if is_other_program and is_other_kind:
        return "unseen", "strict"
    return ("unseen",) if is_other_program or is_other_kind else ("seen",)


def ask(fault: Fault, text: str, kept: Path, *, command: Sequence[str], limit: float) -> None:
    """Run the doctor on a case in a folder of its own and keep what it said.

    Args:
        fault: Fault, or the clean program.
        text: Text of the program without the fault.
        kept: File for the answer; a case that is there with the same text and command is not run.
        command: Command line, to which the program is added.
        limit: Time limit in seconds.
    """
    text = fault.planted(text)
    key = hashlib.sha256("\0".join([text, *command[1:]]).encode()).hexdigest()
    if kept.exists() and json.loads(kept.read_text("utf-8"))["key"] == key:
        return
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"{fault.program}.py").write_text(text, "utf-8")
        process = subprocess.Popen(
            [*command, f"{fault.program}.py"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, err = process.communicate()
            err += f"\nno answer within {limit:.0f} s"
    try:
        answer = json.loads(out[out.index("{") :])
    except ValueError:
        answer = None
    seconds = round(time.perf_counter() - start, 2)
    record = {"key": key, "seconds": seconds, "exit": process.returncode, "answer": answer}
    kept.write_text(json.dumps({**record, "stderr": err[-2000:]}, indent=1), "utf-8")


def read_answer(kept: Path) -> Answer:
    """Read what the doctor said of a case."""
    record: dict[str, Any] = json.loads(kept.read_text("utf-8"))
    found = (record["answer"] or {"findings": []})["findings"]
    return Answer(
        findings=tuple((finding["code"], finding["severity"]) for finding in found),
        seconds=record["seconds"],
        problem="" if record["answer"] else record["stderr"].strip()[-200:],
    )


def main(
    store: Annotated[Path, typer.Option(help="Folder of the doctor's answers.")],
    collection: Annotated[Path, typer.Option(exists=True, help="The collection.")] = COLLECTION,
    doctor: Annotated[str, typer.Option(help="Command line of the doctor.")] = DOCTOR,
    mode: Annotated[list[str] | None, typer.Option(help="running, reading. Default: both.")] = None,
    part: Annotated[list[str] | None, typer.Option(help="seen, unseen. Default: both.")] = None,
    only: Annotated[str, typer.Option(help="Only cases whose PROGRAM--KIND has this.")] = "",
    processes: Annotated[int, typer.Option(min=1, help="Doctors at one time.")] = 1,
    limit: Annotated[float, typer.Option(help="Seconds for one case.")] = 240,
    cases: Annotated[bool, typer.Option("--cases", help="Print each case.")] = False,
) -> None:
    """Score the doctor on the planted faults."""
    kinds = tomllib.loads((collection / "kinds.toml").read_text("utf-8"))
    every = read_faults(collection)
    halves = first_half(f.program for f in every if f.kind != CLEAN), first_half(kinds)
    wanted = set(part or PARTS)
    chosen = [f for f in every if only in f.name and wanted & set(parts_of(f, *halves))]
    texts = [(collection / f"programs/{f.program}.py").read_text("utf-8") for f in chosen]
    console = Console(width=130, soft_wrap=True, highlight=False)
    for name in mode or MODES:
        (store / name).mkdir(parents=True, exist_ok=True)
        files = [store / name / f"{fault.name}.json" for fault in chosen]
        command = [*shlex.split(doctor), *MODES[name]]
        with concurrent.futures.ThreadPoolExecutor(processes) as pool:
            asked = functools.partial(ask, command=command, limit=limit)
            list(pool.map(asked, chosen, texts, files))  # raises what a case raised
        answers = {f: read_answer(kept) for f, kept in zip(chosen, files, strict=True)}
        console.print(f"\n[bold]{name}")
        _print_scores(console, answers, kinds, lambda fault: parts_of(fault, *halves), cases)


def _print_scores(
    console: Console,
    answers: dict[Fault, Answer],
    kinds: dict[str, Any],
    parts: Callable[[Fault], tuple[str, ...]],
    print_cases: bool,
) -> None:
    """Print false alarms, or all cases, and the table by part, group and kind."""
    clean = {fault.program: answer for fault, answer in answers.items() if fault.kind == CLEAN}
    counts: dict[tuple[str, str], list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    for fault, answer in answers.items():
        codes = [code for code, _ in answer.findings]
        if fault.kind == CLEAN:
            is_quiet = all(severity == "hint" for _, severity in answer.findings)
            score, rows = (1, is_quiet, is_quiet), ["clean"]
            mark = "quiet" if is_quiet else "false"
        else:
            # A code that the clean program gets as well is no answer to the fault.
            known = {c for c, _ in clean[fault.program].findings} if fault.program in clean else ()
            accepted = set(kinds[fault.kind]["accepted"]).difference(known)
            score = 1, bool(accepted & set(codes)), bool(codes) and codes[0] in accepted
            rows = ["all", kinds[fault.kind]["group"], f"  {fault.kind}"]
            mark = ("missed", "found", "first")[sum(score) - 1]
        if print_cases or mark == "false":
            print(f"{mark:7}{fault.name:55}", *codes, answer.problem)
        for key in [(row, part) for row in rows for part in parts(fault)]:
            counts[key] = [a + b for a, b in zip(counts[key], score, strict=True)]
    table = Table("", *(f"{part} {what}" for part in PARTS for what in ("found", "first")))
    rows = ["all"]
    for group in dict.fromkeys(each["group"] for each in kinds.values()):
        rows += [group, *(f"  {kind}" for kind in kinds if kinds[kind]["group"] == group)]
    for row in [*rows, "clean"]:
        cells = []
        for num, found, first in (counts[row, part] for part in PARTS):
            cells += [f"{n}/{num} {n / num:.2f}" if num else "" for n in (found, first)]
        if any(cells):
            table.add_row(row, *cells)
    console.print(table)
    seconds = [answer.seconds for answer in answers.values()]
    console.print(f"seconds: {statistics.median(seconds):.1f} median, {max(seconds):.1f} longest")


if __name__ == "__main__":
    typer.run(main)
