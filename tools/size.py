"""Counts what the source and the tests consist of, from syntax trees and the import graph.

    .venv/bin/python tools/size.py            the table
    .venv/bin/python tools/size.py --list     also the modules, functions and classes behind it
    .venv/bin/python tools/size.py --json

An import counts wherever it stands; a module with one importer is named by one other module of
src. A forwarder returns a call of another function with its own parameters. A function that is
referenced once is named in one place of src, its definition apart.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evener"
SECTIONS = ("Args:", "Returns:", "Yields:", "Raises:", "Attributes:")
LOADED = (
    "import sys, evener; evener.Strategy; print(sum(m.startswith('evener') for m in sys.modules))"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def module_name(path: Path) -> str:
    """Return the dotted name of a file of src."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_docstring(node: ast.stmt) -> bool:
    """Whether a statement is a text alone."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def num_lines(node: ast.AST) -> int:
    """Return the number of lines of a node."""
    return (node.end_lineno or 0) - node.lineno + 1  # type: ignore[attr-defined]


def is_forwarder(function: Function, body: list[ast.stmt]) -> bool:
    """Whether a body only calls another function with the same parameters."""
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    call = body[0].value
    if not isinstance(call, ast.Call):
        return False
    parameters = {
        argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)
    }
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    names = [value.value if isinstance(value, ast.Starred) else value for value in given]
    passed = {name.id for name in names if isinstance(name, ast.Name)}
    return len(passed) == len(names) and passed == parameters - {"self", "cls"}


def section_lines(docstring: str) -> int:
    """Return the lines of the sections on arguments, results and errors."""
    count, inside = 0, False
    for line in docstring.splitlines():
        inside = line in SECTIONS or (inside and (not line or line.startswith("    ")))
        count += inside and bool(line)
    return count


class Size:
    """The counts of src, and the names behind them."""

    def __init__(self) -> None:
        paths = sorted(SOURCE.rglob("*.py"))
        self.texts = {module_name(path): path.read_text(encoding="utf-8") for path in paths}
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}
        self.importers: dict[str, set[str]] = collections.defaultdict(set)
        self.classes: dict[str, list[str]] = collections.defaultdict(list)
        self.functions: list[tuple[str, Function]] = []
        self.statements = self.docstring_lines = self.import_lines = self.section_lines = 0
        for module, tree in self.trees.items():
            self._count(module, tree)

    def _count(self, module: str, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            self.statements += isinstance(node, ast.stmt)
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.import_lines += num_lines(node)
                for target in self._imported(node):
                    if target != module:
                        self.importers[target].add(module)
            if isinstance(node, DOCUMENTED) and node.body:
                if is_docstring(node.body[0]):
                    self.docstring_lines += num_lines(node.body[0])
                    self.section_lines += section_lines(ast.get_docstring(node) or "")
            if isinstance(node, ast.ClassDef):
                self.classes[node.name].append(module)
            if isinstance(node, Function):
                self.functions.append((module, node))

    def _imported(self, node: ast.Import | ast.ImportFrom) -> list[str]:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = [
                whole
                if (whole := f"{node.module}.{alias.name}") in self.trees
                else str(node.module)
                for alias in node.names
            ]
        return [name for name in names if name in self.trees]

    def one_importer(self) -> dict[str, str]:
        """Module -> its only importer."""
        return {
            module: next(iter(self.importers[module]))
            for module in self.trees
            if len(self.importers[module]) == 1 and not module.endswith("__main__")
        }

    def one_statement(self) -> list[str]:
        """Functions whose body is one statement."""
        return [
            f"{module}.{function.name}"
            for module, function in self.functions
            if len(_body(function)) == 1
        ]

    def forwarders(self) -> list[str]:
        """Functions that only call another one."""
        return [
            f"{module}.{function.name}"
            for module, function in self.functions
            if is_forwarder(function, _body(function))
        ]

    def referenced_once(self) -> list[str]:
        """Functions that one place of src names, besides imports."""
        uses: collections.Counter[str] = collections.Counter()
        for tree in self.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    uses[node.id] += 1
                elif isinstance(node, ast.Attribute):
                    uses[node.attr] += 1
        return [
            f"{module}.{function.name}"
            for module, function in self.functions
            if uses[function.name] == 1
        ]

    def repeated_classes(self) -> dict[str, list[str]]:
        """Class name -> modules, for names that stand in several."""
        return {name: where for name, where in sorted(self.classes.items()) if len(where) > 1}


def _body(function: Function) -> list[ast.stmt]:
    return function.body[1:] if is_docstring(function.body[0]) else function.body


def num_patches() -> int:
    """Return the number of patches that are declared."""
    folder = SOURCE / "_tf_private"
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")]
    return sum(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
        and (node.func.id if isinstance(node.func, ast.Name) else node.func.attr) == "Patch"
        for tree in trees
        for node in ast.walk(tree)
    )  # fmt: skip


def lines_below(folder: Path) -> int:
    """Return the lines of all Python files in a folder."""
    return sum(len(path.read_bytes().splitlines()) for path in folder.rglob("*.py"))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    size = Size()
    single = size.one_importer()
    in_folder = [m for m, by in single.items() if m.rpartition(".")[0] == by.rpartition(".")[0]]
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    ).stdout
    folders = [p for p in SOURCE.iterdir() if p.is_dir() and any(p.glob("*.py"))]
    table = {
        "files in src": len(size.trees),
        "modules with one importer": len(single),
        "  of them in the importer's folder": len(in_folder),
        "  their lines": sum(size.texts[module].count("\n") for module in single),
        "lines in src": lines_below(SOURCE),
        "statements": size.statements,
        "docstring lines": size.docstring_lines,
        "  in sections (Args, Returns, Raises)": size.section_lines,
        "import lines": size.import_lines,
        "functions of one statement": len(size.one_statement()),
        "forwarders": len(size.forwarders()),
        "functions referenced once": len(size.referenced_once()),
        "class names more than once": len(size.repeated_classes()),
        "modules that evener.Strategy loads": int(loaded.split()[-1]),
        "folders": len(folders),
        "loose files": len([*SOURCE.glob("*.py")]),
        "patches of TensorFlow and Keras": num_patches(),
        "lines in tests": lines_below(ROOT / "tests"),
    }
    if options.json:
        print(json.dumps(table, indent=2))
        return
    for name, value in table.items():
        print(f"{name:40} {value:>8,}")
    if options.list:
        print(
            "\nmodules with one importer:",
            *(f"{m} <- {by}" for m, by in single.items()),
            sep="\n  ",
        )
        print("\nforwarders:", *size.forwarders(), sep="\n  ")
        repeated = size.repeated_classes().items()
        print(
            "\nclasses:", *(f"{name}: {', '.join(where)}" for name, where in repeated), sep="\n  "
        )


if __name__ == "__main__":
    main()
