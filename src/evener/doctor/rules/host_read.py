"""DOC-402: a tensor is copied to the host in every step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import FUNCTIONS, Kind, Location, Module, Program
from evener.doctor.queries.source_text import location_of_line, observed_location, shown
from evener.doctor.queries.steps import steps_of
from evener.doctor.queries.training import is_for_keras
from evener.doctor.rule import Case, Violation
from evener.doctor.watch import HostRead

_METHODS = ("numpy", "item")
_NUMBERS = ("float", "int", "bool")
_PRINTS = ("print", "logging.info", "logging.debug")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    read = {(observed.where.file, observed.where.line): observed for observed in _seen_reads(case)}
    found: set[tuple[str, int]] = set()
    for module, node in program.nodes(ast.Call, ast.FormattedValue):
        what = _read(program, module, node)
        if what is None or not _is_in_every_step(program, module, node):
            continue
        location = module.location(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            location = location_of_line(module, node.func.end_lineno or location.line)
        found.add((location.path, location.line))
        seen = read.get((location.path, location.line))
        yield _violation(location, what, () if seen is None else (_measured(seen),))
    for key, observed in read.items():
        if key not in found:
            location = observed_location(program, observed.where)
            yield _violation(location, "a tensor", (location.text, _measured(observed)))


def _violation(location: Location, what: str, evidence: tuple[str, ...]) -> Violation:
    return Violation(
        location,
        f"{what} is copied to the host in every step.",
        why="The program waits here until the devices have finished the step, and they then wait "
        "for the program to begin the next one.",
        fix="keep it on the device (a keras.metrics.Mean, or a sum of tensors), and read it once "
        "per epoch, or every hundred steps.",
        evidence=(location.text, *evidence) if location.text not in evidence else evidence,
    )


def _seen_reads(case: Case) -> list[HostRead]:
    seen = case.observation
    if seen is None or seen.steps is None or seen.steps.num_steps < 2:
        return []
    # What is read in fewer than half of the steps is not read in each.
    return [
        observed for observed in seen.host_reads if 2 * observed.num_reads >= seen.steps.num_steps
    ]


def _measured(read: HostRead) -> str:
    return f"seen: read {read.num_reads} times, {1000 * read.seconds:.1f} ms waited in all"


def _read(program: Program, module: Module, node: ast.AST) -> str | None:
    """Return what is brought to the host by a call or in a text; None if nothing is."""
    if isinstance(node, ast.FormattedValue):
        return shown(node.value) if _is_tensor(program, module, node.value) else None
    if not isinstance(node, ast.Call):
        return None
    name = program.name_of(module, node.func)
    if isinstance(node.func, ast.Attribute) and not name:
        if node.func.attr in _METHODS and not node.args:
            value = node.func.value
            known = program.kinds(module, value)
            if Kind.ARRAY in known or Kind.DATASET in known:
                return None
            return shown(value) if node.func.attr == "numpy" or known else None
        if node.func.attr in ("info", "debug", "set_postfix", "write"):
            return _first_tensor(program, module, node)
        return None
    if name in _NUMBERS or name in _PRINTS or name == "tqdm.write":
        return _first_tensor(program, module, node)
    if name.startswith("np.") and not name.startswith("np.random"):
        return _first_tensor(program, module, node)
    return None


def _first_tensor(program: Program, module: Module, node: ast.Call) -> str | None:
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return next((shown(value) for value in given if _is_tensor(program, module, value)), None)


def _is_tensor(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether an expression is surely a tensor that devices compute."""
    if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
        return False
    values = program.origins(module, node)
    if not values:
        return False
    for value in values:
        if isinstance(value.node, ast.Constant):
            return False
        kinds = program.kinds(value.module, value.node, value.steps)
        if Kind.TENSOR not in kinds or Kind.ARRAY in kinds:
            return False
        if isinstance(value.node, ast.Call):
            name = program.name_of(value.module, value.node.func)
            method = getattr(value.node.func, "attr", "")
            if name.startswith(("tf.io", "tf.train", "tf.timestamp", "tf.shape")):
                return False
            if method in ("numpy", "item", "get_shape", "as_list"):
                return False
    return True


def _is_in_every_step(program: Program, module: Module, node: ast.AST) -> bool:
    steps, context = steps_of(program), program.context
    if is_for_keras(program, module, node):
        is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        return is_method and not _is_guarded(module, node, None)
    seen: set[ast.AST] = set()
    while True:
        loop = steps.loop_around(module, node)
        if loop is not None:
            return not _is_guarded(module, node, loop)
        function = context.function(module, node)
        if function is None or function in seen or _is_guarded(module, node, function):
            return False
        is_in_loop = next(context.loops(module, node), None) is not None
        sites = [site for site in program.call_sites(function) if site.way == "call"]
        if is_in_loop or context.is_traced(module, node) is not False or len(sites) != 1:
            return False
        seen.add(function)
        module, node = sites[0].module, sites[0].call


def _is_guarded(module: Module, node: ast.AST, top: ast.AST | None) -> bool:
    """Return whether a condition, or a jump in the same block, keeps a node out of some steps."""
    inner: ast.AST = node
    for outer in module.around(node):
        if isinstance(outer, ast.If | ast.IfExp) and inner is not outer.test:
            return True
        if outer is top or isinstance(outer, FUNCTIONS):
            body = getattr(outer, "body", [])
            body = body if isinstance(body, list) and inner in body else [inner]
            before = body[: body.index(inner)]
            leaving = [statement.body[-1] for statement in before if isinstance(statement, ast.If)]
            is_left = any(isinstance(statement, ast.Continue | ast.Return) for statement in leaving)
            return is_left or any(isinstance(statement, ast.Break) for statement in body)
        inner = outer
    return False
