"""Check the words of the code: docstrings, entries of Args, and names.

Usage: ``python tools/check_words.py [PATH ...]``; without paths, all Python files of the project.

- A docstring begins with a noun or a verb, not with What, How, Where or Which.
- An entry of Args or Attributes begins with a noun: "Number of samples", not "Of the batch".
- A variable is named for what it holds: no name is ``one``.

docs/glossary.md has the nouns of the project.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "benchmarks", "examples", "tools")
# Programs of others' style, which the doctor reads.
SKIPPED = ("tests/corpus",)
# These are still in the old words. The list may only become shorter.
NOT_YET = ()
QUESTIONS = ("What", "How", "Where", "Which")
NO_NOUNS = frozenset(
    """
    Above As At Before Behind Below Beside By For From How If In It Made Of On So Such That
    These Those To Until What When Where Which Who Whose With Without
    """.split()
)
_SECTION = re.compile(r"^(\s*)(Args|Attributes):\s*$")
_ENTRY = re.compile(r"^(\s+)[`*]*\w[\w, *`]*(?: \([^)]*\))?:\s+(\w+)")


def problems_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the description of each problem of a file.

    Args:
        path: Python file.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _problems_of_docstring(node)
        name = _bound_name(node)
        if name is not None and name[1] == "one":
            yield name[0], "name `one` for what the variable holds"


def _problems_of_docstring(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[tuple[int, str]]:
    text = ast.get_docstring(node)
    if not text:
        return
    line = node.body[0].lineno
    first = text.split(maxsplit=1)[0]
    if first in QUESTIONS:
        yield line, f"docstring begins with {first}: begin with a noun or a verb"
    indent: int | None = None
    level: int | None = None
    for offset, written in enumerate(text.splitlines()):
        section = _SECTION.match(written)
        if section:
            indent, level = len(section[1]), None
            continue
        depth = len(written) - len(written.lstrip())
        if indent is None or not written.strip():
            continue
        if depth <= indent:
            indent = None
            continue
        level = depth if level is None else level
        entry = _ENTRY.match(written)
        if entry and depth == level and entry[2] in NO_NOUNS:
            yield line + offset, f"entry begins with {entry[2]!r}: begin with a noun"


def _bound_name(node: ast.AST) -> tuple[int, str] | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.lineno, node.id
    if isinstance(node, ast.arg):
        return node.lineno, node.arg
    return None


def _is_below(path: Path, folders: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(ROOT / folder) for folder in folders)


def checked_files() -> list[Path]:
    """Return the files that are checked when none are named."""
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in files if not _is_below(path, (*SKIPPED, *NOT_YET))]


def main(arguments: list[str]) -> int:
    """Print all problems; return 1 if there are any.

    Args:
        arguments: Paths of files and folders; none for the project.
    """
    given = [Path(name).resolve() for name in arguments]
    files = [
        file for path in given for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])
    ]
    found = 0
    for path in files or checked_files():
        for line, text in sorted(problems_of(path)):
            name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
            print(f"{name}:{line}: {text}")
            found += 1
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
