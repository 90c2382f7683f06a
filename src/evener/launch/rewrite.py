"""The three lines that would distribute a custom loop, in the names of the script itself.

Read from the text alone, so they are what somebody would write first, and nothing is changed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from evener.launch.shards import is_over_devices

_TAPE = "GradientTape"
# In these the trainer of Keras runs the tape.
_STEPS_OF_MODELS = ("train_step", "test_step")
_STRATEGY_WORDS = ("get_strategy", "experimental_distribute_dataset")
# What people wrap around a dataset in the head of a loop.
_WRAPPERS = ("enumerate", "tqdm", "trange")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """What would distribute a loop.

    Args:
        lines: Three lines of Python, each with where it goes as a comment.
        body: The first and the last line of what must become a function before that; None if
            it is one.
        result: The name of what the third line returns, one value per replica; None if the
            script does not keep it.
    """

    lines: tuple[str, str, str]
    body: tuple[int, int] | None = None
    result: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """A ``for`` that trains: around a tape, or around the call of a function with a tape."""

    loop: ast.For
    call: ast.Call | None
    result: ast.expr | None = None


def is_plain(source: str) -> bool:
    """Return whether a script has a custom loop and no strategy of its own.

    >>> is_plain("with tf.GradientTape() as tape: pass")
    True
    """
    tree = _parsed(source)
    words = _words(tree)
    if any(w in _STRATEGY_WORDS or w.endswith("Strategy") for w in words):
        return False
    return _TAPE in words and not all(_is_in_a_model(tape, tree) for tape in _tapes(tree))


def rewrite_of(source: str, line: int, strategy: str = "strategy") -> Rewrite:
    """Return what would distribute the loop that runs at a line.

    Args:
        source: The text of the script.
        line: Where the loop is at work: in its body, or in the function that holds its tape.
        strategy: What the script calls its strategy, if it has one.
    """
    tree = _parsed(source)
    tf = _alias_of_tensorflow(tree)
    found = _nearest(list(_loops(tree)), tree, line)
    if found is None:
        dataset, call, result, body = "dataset", "step, args=(batch,)", None, None
        second = f"{dataset} = {strategy}.experimental_distribute_dataset({dataset})"
    else:
        second = _second_line(found.loop, strategy)
        result = None if found.result is None else ast.unparse(found.result)
        call = _run_arguments(found)
        body = None if found.call is not None else _span(found.loop.body)
    third = f"{result} = {strategy}.run({call})" if result else f"{strategy}.run({call})"
    lines = (
        f"{strategy} = {tf}.distribute.get_strategy()",
        second,
        third,
    )
    where = ("at the beginning", "before the loop", _instead_of(found))
    if found is not None and second.startswith("for "):
        where = (where[0], f"instead of line {found.loop.lineno}", where[2])
    width = max(map(len, lines))
    first, second, third = (
        f"{text:<{width}}  # {comment}" for text, comment in zip(lines, where, strict=True)
    )
    return Rewrite(lines=(first, second, third), body=body, result=result)


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        # Python will say it when the script runs.
        return ast.Module(body=[], type_ignores=[])


def _words(tree: ast.AST) -> set[str]:
    """Return all names, attributes and imported names."""
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
        elif isinstance(node, ast.alias):
            words.add(node.name.rpartition(".")[2])
    return words


def _alias_of_tensorflow(tree: ast.AST) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "tensorflow":
                    return alias.asname or "tensorflow"
    return "tf"


def _loops(tree: ast.Module) -> Iterator[_Loop]:
    """Yield the innermost loops around tapes, and around calls of functions that hold one."""
    steps: dict[str, Function] = {}
    for function in _functions(tree):
        inside = [loop for loop in _innermost(function) if _holds_tape(loop)]
        if _holds_tape(function) and not inside:
            steps[function.name] = function
    for loop in _innermost(tree):
        called = _call_of(loop, steps)
        if called is not None:
            yield called
        elif _holds_tape(loop):
            yield _Loop(loop=loop, call=None)


def _functions(tree: ast.AST) -> Iterator[Function]:
    yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def _innermost(tree: ast.AST) -> Iterator[ast.For]:
    """Yield loops over batches; of nested ones the inner comes first."""
    loops = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and not is_over_devices(node.iter, tree)
    ]
    yield from sorted(loops, key=lambda loop: (loop.end_lineno or 0) - loop.lineno)


def _tapes(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and _name(node) == _TAPE:
            yield node


def _is_in_a_model(tape: ast.expr, tree: ast.Module) -> bool:
    methods = (
        method
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef)
        for method in kind.body
        if isinstance(method, Function) and method.name in _STEPS_OF_MODELS
    )
    return any(tape in ast.walk(method) for method in methods)


def _holds_tape(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.With) and _TAPE in _words(node) for node in ast.walk(tree))


def _call_of(loop: ast.For, steps: Mapping[str, Function]) -> _Loop | None:
    """Return a loop with the call of a step in its body, if there is one."""
    for statement in ast.walk(loop):
        if not isinstance(statement, ast.stmt):
            continue
        value = getattr(statement, "value", None)
        for node in ast.walk(value) if isinstance(value, ast.expr) else ():
            if isinstance(node, ast.Call) and _name(node.func) in steps:
                return _Loop(loop=loop, call=node, result=_kept(statement, node))
    return None


def _kept(statement: ast.stmt, call: ast.Call) -> ast.expr | None:
    """Return what a statement assigns a call's result to, or None."""
    if isinstance(statement, ast.Assign) and statement.value is call:
        return statement.targets[0]
    return None


def _name(function: ast.expr) -> str | None:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def _nearest(loops: list[_Loop], tree: ast.Module, line: int) -> _Loop | None:
    """Return the innermost loop around a line, else one that calls the function around it."""
    around = [found for found in loops if _covers(found.loop, line)]
    if around:
        return around[0]
    names = {function.name for function in _functions(tree) if _covers(function, line)}
    calling = [f for f in loops if f.call is not None and _name(f.call.func) in names]
    return next(iter(calling or loops), None)


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _dataset(loop: ast.For) -> tuple[ast.expr, bool]:
    """Return what a loop goes through, and whether it counts as well."""
    iterated = loop.iter
    counts = False
    while isinstance(iterated, ast.Call) and _name(iterated.func) in _WRAPPERS and iterated.args:
        counts = counts or _name(iterated.func) == "enumerate"
        iterated = iterated.args[0]
    return iterated, counts


def _is_dataset(iterated: ast.expr) -> bool:
    """Return whether it could be: numbers and pairs of arrays are not."""
    return not (isinstance(iterated, ast.Call) and _name(iterated.func) in ("range", "zip"))


def _second_line(loop: ast.For, strategy: str) -> str:
    iterated, _ = _dataset(loop)
    distribute = f"{strategy}.experimental_distribute_dataset"
    if not _is_dataset(iterated):
        return f"dataset = {distribute}(dataset)"
    name = ast.unparse(iterated)
    if isinstance(iterated, ast.Name | ast.Attribute):
        return f"{name} = {distribute}({name})"
    whole = ast.unparse(loop.iter).replace(name, f"{distribute}({name})", 1)
    return f"for {ast.unparse(loop.target)} in {whole}:"


def _run_arguments(found: _Loop) -> str:
    if found.call is None:
        return f"step, args={_batch(found.loop)}"
    call = found.call
    text = f"{ast.unparse(call.func)}, args={_tuple([ast.unparse(arg) for arg in call.args])}"
    pairs = [
        f"**{ast.unparse(k.value)}" if k.arg is None else f"{k.arg!r}: {ast.unparse(k.value)}"
        for k in call.keywords
    ]
    return f"{text}, kwargs={{{', '.join(pairs)}}}" if pairs else text


def _batch(loop: ast.For) -> str:
    """Return the arguments of a step that is not written yet: the loop's own names."""
    iterated, counts = _dataset(loop)
    target = loop.target
    if counts and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    if not _is_dataset(iterated):
        return "(batch,)"
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    return _tuple([ast.unparse(name) for name in names])


def _tuple(parts: list[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _span(body: list[ast.stmt]) -> tuple[int, int]:
    return body[0].lineno, body[-1].end_lineno or body[-1].lineno


def _instead_of(found: _Loop | None) -> str:
    if found is None:
        return "instead of one step"
    if found.call is None:
        first, last = _span(found.loop.body)
        return f"instead of lines {first} to {last}"
    return f"instead of line {found.call.lineno}"
