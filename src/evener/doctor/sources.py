"""The files of a program: the script, and the modules of its project that it imports."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A project may import the whole source of another one; only its first files are read.
_MOST_MODULES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A line of a file."""

    path: str  # Absolute path
    line: int  # Line number, from 1; 0 for the file as a whole
    text: str = ""  # Text of the line, without surrounding spaces


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """A file that was read."""

    path: str  # Absolute path
    name: str  # The dotted name it is imported by; ``"__main__"`` for the script itself
    tree: ast.Module  # Its syntax tree
    lines: tuple[str, ...]  # The lines of its text

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def location(self, node: ast.AST) -> Location:
        """Return the line on which a node begins; that of the last name for ``a.b.c()``."""
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            line = node.func.end_lineno or line
        return self.line(line)

    def line(self, line: int) -> Location:
        text = self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
        return Location(path=self.path, line=line, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A file that could not be read."""

    path: str  # The file
    line: int  # Line of the syntax error; 0 if the file could not be opened
    reason: str  # The message of Python or the system
    is_text: bool  # Whether the file could be opened
    importer: tuple[str, int] | None = None  # The file and line that import it


def read_sources(script: Path) -> tuple[dict[str, Source], tuple[Unread, ...]]:
    """Read a script and, from its folder down, what it imports. Nothing is executed."""
    sources: dict[str, Source] = {}
    unread: list[Unread] = []
    script = script.absolute()
    root = script.resolve().parent
    waiting: list[tuple[Path, str, tuple[str, int] | None]] = [(script, "__main__", None)]
    while waiting and len(sources) < _MOST_MODULES:
        path, name, importer = waiting.pop(0)
        if name in sources:
            continue
        source = _read(path, name, importer)
        if isinstance(source, Unread):
            unread.append(source)
            continue
        sources[name] = source
        for imported, line in _imported(source):
            below = root.joinpath(*imported.split("."))
            for file in (below.with_name(below.name + ".py"), below / "__init__.py"):
                if file.is_file() and file != script.resolve():
                    waiting.append((file, imported, (source.path, line)))
                    break
    return sources, tuple({(each.path, each.line): each for each in unread}.values())


def from_module(source: Source, node: ast.ImportFrom) -> str:
    """Return the module that a ``from`` import names, dots resolved."""
    if not node.level:
        return node.module or ""
    parts = [] if source.name == "__main__" else source.name.split(".")
    is_package = Path(source.path).name == "__init__.py"
    kept = parts[: len(parts) - node.level + is_package] if parts else []
    return ".".join([*kept, *([node.module] if node.module else [])])


def _imported(source: Source) -> Iterator[tuple[str, int]]:
    """Yield the dotted names that may be modules of the project, with the lines."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        base = from_module(source, node) if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            parts = [*base.split("."), *alias.name.split(".")] if base else alias.name.split(".")
            yield from ((".".join(parts[: i + 1]), node.lineno) for i in range(len(parts)))


def _read(path: Path, name: str, importer: tuple[str, int] | None) -> Source | Unread:
    try:
        text = importlib.util.decode_source(path.read_bytes())
        tree = ast.parse(text, filename=str(path))
        return Source(path=str(path), name=name, tree=tree, lines=tuple(text.splitlines()))
    except OSError as error:
        reason, line, is_text = error.strerror or str(error), 0, False
    except SyntaxError as error:
        reason, line, is_text = error.msg, error.lineno or 0, True
    except (ValueError, LookupError, RecursionError, MemoryError) as error:
        reason, line, is_text = str(error) or type(error).__name__, 0, True
    return Unread(path=str(path), line=line, reason=reason, is_text=is_text, importer=importer)
