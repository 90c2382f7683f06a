"""What a script does with the strategy that it makes itself: read from its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from evener.launch.place import Place

_RUN = ("run", "experimental_run_v2")
_DISTRIBUTES = (
    "experimental_distribute_dataset",
    "distribute_datasets_from_function",
    "experimental_distribute_datasets_from_function",
)
_USUAL_NAME = "strategy"


@dataclass(slots=True)
class Made:
    """Where the script has made its strategy.

    Attributes:
        place: Of the first one; None as long as there is none.
    """

    place: Place | None = None


def name_of(source: str, line: int) -> str:
    """Return what a script calls the strategy that it makes at a line.

    >>> name_of("self.dist = tf.distribute.MirroredStrategy()", 1)
    'self.dist'
    """
    for node in ast.walk(_parsed(source)):
        if isinstance(node, ast.Assign) and node.lineno <= line <= (node.end_lineno or 0):
            target = node.targets[0]
            if isinstance(target, ast.Name | ast.Attribute):
                return ast.unparse(target)
    return _USUAL_NAME


def calls_run(source: str) -> bool:
    """Return whether a script calls ``run`` of a strategy somewhere.

    >>> calls_run("loss = strategy.run(step)"), calls_run("app.run(main)")
    (True, False)
    """
    tree = _parsed(source)
    known = set(_strategies(tree))
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in _RUN
        and (_last_name(node.value) in known or _is_strategy_by_name(_last_name(node.value)))
        for node in ast.walk(tree)
    )


def distributes(source: str) -> bool:
    """Return whether a script distributes a dataset.

    >>> distributes("data = strategy.experimental_distribute_dataset(data)")
    True
    """
    tree = _parsed(source)
    return any(
        isinstance(node, ast.Attribute) and node.attr in _DISTRIBUTES for node in ast.walk(tree)
    )


def _strategies(tree: ast.AST) -> Iterator[str]:
    """Yield the names that are given a strategy."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if _is_strategy_by_name(_last_name(node.value.func)):
            yield from (_last_name(target) for target in node.targets)


def _is_strategy_by_name(name: str) -> bool:
    return "strategy" in name.lower()


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        # What runs was read by Python; this text is another.
        return ast.Module(body=[], type_ignores=[])
