"""Findings that a comment on their line takes back: ``# evener: ignore[DOC-201]``."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable
from pathlib import Path

from evener.doctor.finding import Finding
from evener.doctor.program import Program

_COMMENT = re.compile(r"#\s*evener:\s*ignore(?:\[([^\]]*)\])?(?![\w\[])", re.IGNORECASE)


def without_ignored(
    program: Program, findings: Iterable[Finding]
) -> tuple[tuple[Finding, ...], int]:
    """Return the findings that no comment on their line ignores, and how many are ignored."""
    comments: dict[str, dict[int, str]] = {}
    kept: list[Finding] = []
    num_ignored = 0
    for finding in findings:
        if finding.file not in comments:
            comments[finding.file] = _comments(program, finding.file)
        if _ignores(comments[finding.file].get(finding.line, ""), finding.code):
            num_ignored += 1
        else:
            kept.append(finding)
    return tuple(kept), num_ignored


def _ignores(comment: str, code: str) -> bool:
    for match in _COMMENT.finditer(comment):
        if match.group(1) is None:
            return True
        given = [one.strip().upper() for one in match.group(1).split(",")]
        if code.startswith(tuple(one for one in given if one)):
            return True
    return False


def _comments(program: Program, path: str) -> dict[int, str]:
    """Return the comments of a file that speak to evener, by their line."""
    module = next((one for one in program.modules if one.path == path), None)
    lines = module.lines if module is not None else _lines_of(path)
    said = {n: line for n, line in enumerate(lines, start=1) if _COMMENT.search(line)}
    if module is None or not said:
        return said
    # What a string says is no comment.
    tokens = tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline)
    return {
        one.start[0]: one.string
        for one in tokens
        if one.type == tokenize.COMMENT and one.start[0] in said
    }


def _lines_of(path: str) -> list[str]:
    """Return the lines of a file that is no module of the program, such as requirements.txt."""
    if Path(path).suffix not in (".txt", ".toml", ".yml", ".yaml"):
        return []
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
