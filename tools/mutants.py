"""Small faults put into the code one at a time: which of them do the tests see?

::

    python tools/mutants.py --number 100 --seed 1 --out before.tsv
    python tools/mutants.py --number 100 --seed 1 --out after.tsv --against before.tsv

A mutant is one change of one expression: a comparison or an operator is another one, ``not`` is
left out, a number is one larger, a call whose result nobody uses is left out. The tests of the
folder that it is in run in a fork of this process, which has imported TensorFlow but nothing of
evener; the first test that fails ends them. Processes that tests start have the code as it is. A
seed draws the same mutants again as long as the code is the same.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import importlib.util
import os
import random
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
# Tests of a folder besides those in tests/unit/FOLDER: they compute with it in this process.
MORE_TESTS = {
    "_tf_private": ("tests/conformance", "tests/multi_device/test_pinning.py"),
    "graph": ("tests/exactness/test_found_programs.py", "tests/exactness/test_written_steps.py"),
    "partition": ("tests/unit/graph", "tests/exactness/test_written_steps.py"),
    "pinning": ("tests/multi_device/test_pinning.py", "tests/multi_device/test_pinning_layers.py"),
    "strategy": ("tests/conformance", "tests/multi_device"),
    "workers": ("tests/workers/test_simulated.py", "tests/workers/test_faults.py"),
}
OTHER = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.And: ast.Or,
    ast.FloorDiv: ast.Mult, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    path: Path
    line: int
    change: str
    source: str

    @property
    def name(self) -> str:
        return f"{self.path.relative_to(SOURCE)}:{self.line}\t{self.change}"

    @property
    def module(self) -> str:
        parts = self.path.relative_to(SOURCE).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def changed(node: ast.AST) -> ast.AST | None:
    """Return another expression or statement for a node, or None where nothing is changed."""
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in OTHER:
            return ast.Compare(left, [OTHER[type(operator)]()], [right])
        case ast.BinOp(left, operator, right) if type(operator) in OTHER:
            return ast.BinOp(left, OTHER[type(operator)](), right)
        case ast.BoolOp(operator, values):
            return ast.BoolOp(OTHER[type(operator)](), values)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Constant(int(value)) if not isinstance(value, bool):
            return ast.Constant(value + 1)
        case ast.Expr(ast.Call()):
            return ast.Pass()
    return None


def expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Return what a module computes: no annotations, and nothing that only a type checker reads."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "type_params"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from expressions(child)


def mutants_of(path: Path) -> Iterator[Mutant]:
    source = path.read_bytes()
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    for node in expressions(ast.parse(source)):
        other = changed(node)
        # In an f-string, Python 3.11 does not say where an expression is.
        if other is None or not hasattr(node, "lineno"):
            continue
        begin = begins[node.lineno - 1] + node.col_offset
        end = begins[node.end_lineno - 1] + node.end_col_offset
        old, new = ast.unparse(node), ast.unparse(other)
        text = new if isinstance(other, ast.Pass) else f"({new})"
        mutated = (source[:begin] + text.encode() + source[end:]).decode()
        try:
            compile(mutated, str(path), "exec")
        except SyntaxError:
            continue
        yield Mutant(path, node.lineno, f"{old} -> {new}".replace("\n", " "), mutated)


def drawn(number: int, seed: int, folders: list[str]) -> list[Mutant]:
    """Draw a folder, then one of its mutants, as often as asked."""
    rng = random.Random(seed)
    mutants = {
        folder: [
            mutant
            for path in sorted((SOURCE / "evener" / folder).rglob("*.py"))
            for mutant in mutants_of(path)
        ]
        for folder in folders
    }
    return [rng.choice(mutants[rng.choice(folders)]) for _ in range(number)]


def put_in(mutant: Mutant) -> None:
    """Let the module be imported with the fault."""

    class Loader(importlib.machinery.SourceFileLoader):
        def get_code(self, fullname: str) -> Any:
            return compile(mutant.source, str(mutant.path), "exec", dont_inherit=True)

    class Finder:
        @staticmethod
        def find_spec(fullname: str, path: Any = None, target: Any = None) -> Any:
            if fullname != mutant.module:
                return None
            loader = Loader(fullname, str(mutant.path))
            return importlib.util.spec_from_file_location(fullname, mutant.path, loader=loader)

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]


def tests_of(mutant: Mutant) -> list[str]:
    folder = mutant.path.relative_to(SOURCE / "evener").parts[0]
    paths = (f"tests/unit/{folder}", *MORE_TESTS.get(folder, ()))
    return [path for path in paths if (ROOT / path).exists()]


def is_killed(mutant: Mutant, tests: list[str], marks: str, seconds: int) -> bool:
    """Run tests in a fork with the fault; those that take too long have found it too."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        put_in(mutant)
        import pytest

        quiet = ("-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "--timeout", "120")
        os._exit(int(pytest.main([*quiet, "-m", marks, *tests])))
    _, status = os.waitpid(child, 0)
    return status != 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folders", default="graph,partition,strategy,plan,planner,workers")
    parser.add_argument("--tests", nargs="*", help="instead of those of the folder")
    parser.add_argument("--marks", default="not long")
    parser.add_argument("--seconds", type=int, default=600, help="CPU seconds for a mutant")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--against", type=Path, help="an earlier --out: its kills must be here too")
    args = parser.parse_args()
    os.chdir(ROOT)
    os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", EVENER_VERIFY="0")
    import keras  # noqa: F401

    mutants = drawn(args.number, args.seed, args.folders.split(","))
    for tests in {tuple(args.tests or tests_of(mutant)) for mutant in mutants}:
        path = mutants[0].path
        unchanged = Mutant(path, 1, "no change", path.read_text(encoding="utf-8"))
        if is_killed(unchanged, list(tests), args.marks, 100 * args.seconds):
            print("These tests fail without a fault:", *tests)
            return 2
    killed = {}
    with args.out.open("w", encoding="utf-8") as out:
        for mutant in mutants:
            begin = time.monotonic()
            killed[mutant.name] = is_killed(
                mutant, args.tests or tests_of(mutant), args.marks, args.seconds
            )
            result = "killed" if killed[mutant.name] else "survived"
            print(
                f"{result}\t{time.monotonic() - begin:.0f} s\t{mutant.name}", file=out, flush=True
            )
    print(f"{sum(killed.values())} of {len(killed)} killed")
    if args.against is None:
        return 0
    before = [line.split("\t", 2) for line in args.against.read_text().splitlines()]
    lost = [name for result, _, name in before if result == "killed" and not killed.get(name)]
    print(*(f"not killed any more: {name}" for name in lost), sep="\n")
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
