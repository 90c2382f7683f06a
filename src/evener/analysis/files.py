"""Reads the script, and the modules of the same project that it imports."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evener.analysis.module import Module, module_of

# A project may import the whole source of another one; only its first files are read.
_MOST_MODULES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A file that could not be read.

    Args:
        path: The file.
        line: Line of the syntax error; 0 if the file could not be opened.
        reason: The message of Python or the system.
        is_text: Whether the file could be opened.
        importer: The file and line that import it; None for the script itself.
    """

    path: str
    line: int
    reason: str
    is_text: bool
    importer: tuple[str, int] | None = None


@dataclass(slots=True, kw_only=True)
class Files:
    """The files of a program.

    Attributes:
        modules: Modules by dotted name, the script first.
        unread: Files that could not be read.
        contents: Contents that are read instead of those of files, by absolute path.
    """

    modules: dict[str, Module] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)
    contents: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


def read_files(script: Path, contents: Mapping[str, bytes] | None = None) -> Files:
    """Read a script and, from its folder down, what it imports. Nothing is executed.

    Args:
        script: The path of a Python file.
        contents: Contents to read instead of those of files, by absolute path.
    """
    files = Files(contents=contents or {})
    script = script.absolute()
    main = _read(script, "__main__", files, importer=None)
    root = script.resolve().parent
    waiting = [] if main is None else [main]
    while waiting and len(files.modules) < _MOST_MODULES:
        module = waiting.pop(0)
        for name, line in imported_names(module):
            path = _file_of(name, root)
            if path is None or name in files.modules or path == script.resolve():
                continue
            found = _read(path, name, files, importer=(module.path, line))
            if found is not None:
                waiting.append(found)
    return files


def imported_names(module: Module) -> Iterator[tuple[str, int]]:
    """Yield the dotted names that a module imports, and those that may be modules, with lines.

    ``from models import net`` gives ``models`` and ``models.net``.
    """
    for node in module.every(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from ((part, node.lineno) for part in _and_packages(alias.name))
        else:
            base = absolute_name(module, node)
            yield from ((part, node.lineno) for part in _and_packages(base))
            for alias in node.names:
                yield f"{base}.{alias.name}" if base else alias.name, node.lineno


def absolute_name(module: Module, node: ast.ImportFrom) -> str:
    """Return the module that a ``from`` import names, dots resolved."""
    if not node.level:
        return node.module or ""
    parts = [] if module.name == "__main__" else module.name.split(".")
    is_package = Path(module.path).name == "__init__.py"
    kept = parts[: len(parts) - node.level + is_package] if parts else []
    return ".".join([*kept, *([node.module] if node.module else [])])


def _and_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[: i + 1]) for i in range(len(parts)) if parts[0])


def _file_of(name: str, root: Path) -> Path | None:
    below = root.joinpath(*name.split("."))
    for path in (below.with_name(below.name + ".py"), below / "__init__.py"):
        if path.is_file():
            return path
    return None


def _read(
    path: Path, name: str, files: Files, *, importer: tuple[str, int] | None
) -> Module | None:
    try:
        content = files.contents.get(str(path))
        source = importlib.util.decode_source(path.read_bytes() if content is None else content)
        module = module_of(path=str(path), name=name, source=source)
    except OSError as error:
        reason, line, is_text = error.strerror or str(error), 0, False
    except SyntaxError as error:
        reason, line, is_text = error.msg, error.lineno or 0, True
    except (ValueError, LookupError, RecursionError, MemoryError) as error:
        reason, line, is_text = str(error) or type(error).__name__, 0, True
    else:
        files.modules[name] = module
        return module
    unread = Unread(path=str(path), line=line, reason=reason, is_text=is_text, importer=importer)
    files.unread.append(unread)
    return None
