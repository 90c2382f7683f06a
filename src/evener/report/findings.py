"""Findings of the doctor, printed to the terminal."""

from __future__ import annotations

import textwrap
from collections import Counter

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evener.base.terminal import standard_output
from evener.doctor import Diagnosis, Rule, Severity

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.HINT: "bold cyan"}
_INDENT = 4
# Other words at the beginning of a finding are names of the program.
_FIRST_WORDS = frozenset(
    "a an all each every gradients images inputs labels memory no part some the this training "
    "under variables".split()
)


def print_diagnosis(diagnosis: Diagnosis, console: Console | None = None) -> None:
    console = standard_output(highlight=False) if console is None else console
    for finding in diagnosis.findings:
        head = Text()
        head.append(finding.severity.value.upper(), style=_STYLES[finding.severity])
        head.append(f"  {finding.location}", style="bold")
        head.append(f"  [{finding.code}]")
        console.print(head, soft_wrap=True)
        _print_indented(_as_sentence(finding.what), console)
        for line in "\n".join(finding.evidence).splitlines():
            console.print(Text(f"{' ' * _INDENT}| {line}", style="dim"), soft_wrap=True)
        for name, text in (("Why", finding.why), ("Fix", finding.fix)):
            _print_indented(f"{name}: {text}", console)
        console.print()
    if diagnosis.is_assumed and diagnosis.findings:
        assumed = f"Assumed a machine with {diagnosis.num_gpus} GPUs"
        console.print(Text(f"{assumed}; --gpus N assumes another number."), soft_wrap=True)
    console.print(Text(_summary(diagnosis)), soft_wrap=True)
    if diagnosis.findings:
        first = diagnosis.findings[0].code
        console.print(Text(f"More on a code: evener doctor --explain {first}"), soft_wrap=True)


def print_rules(rules: tuple[Rule, ...], console: Console | None = None) -> None:
    console = standard_output(highlight=False) if console is None else console
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("code", "family", "severity", "finds"):
        table.add_column(column, no_wrap=column == "code")
    for rule in rules:
        table.add_row(rule.code, rule.family.value, rule.severity.value, Text(rule.title))
    console.print(table)


def _as_sentence(text: str) -> str:
    """Return a text with a capital letter, unless it begins with code, such as a name.

    >>> _as_sentence("the loop ends"), _as_sentence("train_step is slow")
    ('The loop ends', 'train_step is slow')
    """
    is_word = text.partition(" ")[0] in _FIRST_WORDS
    return text[:1].upper() + text[1:] if is_word else text


def _print_indented(text: str, console: Console) -> None:
    # Lines of a fix that are code stay as they are.
    for line in text.splitlines():
        indent = " " * (_INDENT + len(line) - len(line.lstrip()))
        wrapped = textwrap.wrap(
            line.strip(),
            width=console.width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for part in wrapped:
            console.print(Text(part), soft_wrap=True)


def _summary(diagnosis: Diagnosis) -> str:
    counts = Counter(finding.severity for finding in diagnosis.findings)
    parts = [
        f"{counts[severity]} {severity.value}{'s' if counts[severity] > 1 else ''}"
        for severity in Severity
        if counts[severity]
    ]
    found = ", ".join(parts) or "nothing found"
    if diagnosis.num_ignored:
        found += f", {diagnosis.num_ignored} ignored by comments"
    if diagnosis.facts is None:
        return (
            f"{found}. Read only: not judged: {diagnosis.not_judged}; without --no-run the first "
            "steps are run."
        )
    steps = diagnosis.facts.main_steps
    took = f"{0 if steps is None else steps.num_steps} steps in "
    took += f"{diagnosis.facts.ending.seconds:.1f} s, {diagnosis.facts.ending.outcome.value}"
    if steps is None:
        took += f"; not judged: {diagnosis.not_judged}"
    return f"{found}. The program was run: {took}."
