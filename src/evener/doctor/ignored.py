"""Findings that a comment on their line suppresses: ``# evener: ignore[DOC-201]``."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

from evener.analysis import Location, Program

_COMMENT = re.compile(r"#\s*evener:\s*ignore(?:\[([^\]]*)\])?(?![\w\[])", re.IGNORECASE)


class Ignored:
    """Findings that comments in a program suppress.

    Args:
        program: The program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._comments: dict[str, dict[int, str]] = {}

    def has(self, location: Location, code: str) -> bool:
        """Return whether a comment on a line ignores a code."""
        if location.path not in self._comments:
            self._comments[location.path] = _comments(self._program, location.path)
        comment = self._comments[location.path].get(location.line, "")
        for match in _COMMENT.finditer(comment):
            given = [part.strip().upper() for part in (match.group(1) or "").split(",")]
            if match.group(1) is None or code.startswith(
                tuple(prefix for prefix in given if prefix)
            ):
                return True
        return False


def _comments(program: Program, path: str) -> dict[int, str]:
    """Return the comments of a file that ignore codes, by line."""
    module = next((candidate for candidate in program.modules if candidate.path == path), None)
    lines = module.lines if module is not None else _lines_of(path)
    found = {n: line for n, line in enumerate(lines, start=1) if _COMMENT.search(line)}
    if module is None or not found:
        return found
    # The pattern may also be in a string, which is not a comment.
    tokens = tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline)
    return {
        token.start[0]: token.string
        for token in tokens
        if token.type == tokenize.COMMENT and token.start[0] in found
    }


def _lines_of(path: str) -> list[str]:
    """Return the lines of a file that is not a module, such as requirements.txt."""
    if Path(path).suffix not in (".txt", ".toml", ".yml", ".yaml"):
        return []
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
