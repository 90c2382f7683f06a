"""DOC-209: a fallback ``except`` around the making of a strategy that raises nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Module, Place, Program
from evener.doctor.questions.strategies import Made, strategies
from evener.doctor.rule import Case, Family, Rule

# They are made whether or not there is a GPU.
_NEVER_RAISES = ("MirroredStrategy", "OneDeviceStrategy", "CentralStorageStrategy")
_HARMLESS = ("print", "len", "str", "logging.*", "tf.print")
_HARMLESS_METHODS = ("format", "info", "warning", "debug", "scope")


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    for made in strategies(program):
        if made.name not in _NEVER_RAISES or not _is_plain(program, made):
            continue
        around = _try_around(made)
        if around is None or not _only_makes(program, made, around):
            continue
        handler = around.handlers[0]
        place = made.call.module.place(handler)
        yield _finding(made, place)


def _finding(made: Made, place: Place) -> Finding:
    return RULE.finding(
        place,
        f"this fallback never fires: {made.name} raises nothing where there is no GPU.",
        why=f"{made.name} is made on any machine; without GPUs it takes the CPU, and devices that "
        "do not exist are placed softly. What stands here never runs.",
        fix="ask instead: if tf.config.list_logical_devices('GPU'): ... else: ...",
        evidence=(made.call.place.text, place.text),
    )


def _is_plain(program: Program, made: Made) -> bool:
    """Return whether the devices, if given, are names that TensorFlow can read."""
    devices = made.devices
    if devices is None:
        return True
    return all(
        isinstance(value.node, ast.List | ast.Tuple | ast.Constant | ast.ListComp)
        for value in program.origins(made.call.module, devices)
    )


def _try_around(made: Made) -> ast.Try | None:
    inner: ast.AST = made.call.node
    for outer in made.call.module.around(inner):
        if isinstance(outer, ast.Try):
            return outer if inner in outer.body and outer.handlers else None
        if isinstance(outer, ast.FunctionDef | ast.With | ast.For | ast.While | ast.If):
            return None
        inner = outer
    return None


def _only_makes(program: Program, made: Made, around: ast.Try) -> bool:
    """Return whether nothing else in the ``try`` can raise."""
    for statement in around.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
                return False
            if isinstance(node, ast.Call) and node is not made.call.node:
                if not _is_harmless(program, made.call.module, node, made):
                    return False
            if isinstance(node, ast.Subscript):
                return False
    return True


def _is_harmless(program: Program, module: Module, node: ast.Call, made: Made) -> bool:
    name = program.name_of(module, node.func)
    if name in _HARMLESS or name.startswith(("logging.", "absl.logging.")):
        return True
    if any(outer is made.call.node for outer in module.around(node)):
        return True
    return isinstance(node.func, ast.Attribute) and node.func.attr in _HARMLESS_METHODS


RULE = Rule(
    code="DOC-209",
    family=Family.DISTRIBUTION,
    title="a fallback that can never fire",
    severity=Severity.WARNING,
    look=_look,
)
