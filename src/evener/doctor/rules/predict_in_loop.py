"""DOC-408: ``predict`` is called for one element after the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Kind, Loop, Module, Program, argument, last_name
from evener.doctor.queries.memory_watch import watches_memory
from evener.doctor.queries.training import fits, is_of_model, trainings
from evener.doctor.rule import Case, Violation

# Number of levels of callers that are searched.
_DEEPEST = 2


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if any(node.name == "predict" for _, node in program.nodes(ast.FunctionDef)):
        return
    is_watching = watches_memory(program)
    for call, owner in program.calls_of("predict"):
        if Kind.MODEL not in program.kinds(call.module, owner) or not is_of_model(program, call):
            continue
        given = call.argument(0, "x")
        if given is None or Kind.DATASET in program.kinds(call.module, given):
            continue
        if not any(
            not _goes_through_models(loop, owner) and _is_wasteful(program, module, loop, data)
            for module, loop, data in _loops(program, call.module, call.node, given, _DEEPEST)
        ):
            continue
        yield Violation(
            call.location,
            "predict is called in every round of the loop, for a little data each time.",
            why="Each call makes a dataset, callbacks and an iterator, and copies the results to "
            "the host, which takes tens of milliseconds, while the device is idle."
            + (" Old versions of Keras kept memory of each call." if is_watching else ""),
            fix="predict all elements in one call; or, if one depends on the one before, "
            "model(x, training=False), in a tf.function.",
        )


def _goes_through_models(loop: Loop, owner: ast.expr) -> bool:
    """Return whether the loop has another model in each round."""
    names = _names(loop.target) if isinstance(loop, ast.For | ast.AsyncFor) else set()
    return bool(names & _names(owner))


def _loops(
    program: Program, module: Module, node: ast.AST, given: ast.expr, deepest: int
) -> Iterator[tuple[Module, Loop, ast.expr]]:
    """Yield the loops that predict in each round, with what a round gives to ``predict``.

    It is the innermost loop around the call, or those around the calls of its function.
    """
    loop = next(program.context.loops(module, node), None)
    if loop is not None:
        yield module, loop, given
        return
    function = program.context.function(module, node)
    if function is None or not deepest:
        return
    for site in program.call_sites(function):
        for name in _names(given):
            for argument_of_site, steps in site.given_to(name):
                if not steps:
                    yield from _loops(
                        program, site.module, site.call, argument_of_site, deepest - 1
                    )


def _is_wasteful(program: Program, module: Module, loop: Loop, given: ast.expr) -> bool:
    """Return whether one ``predict`` before or after the loop could do what its rounds do."""
    nodes = set(ast.walk(loop))
    is_training = any(call.node in nodes for call in trainings(program))
    if not is_training:
        # Who watches the memory of a loop that predicts the same again asks about `predict`.
        return _is_of_round(loop, given) or watches_memory(program)
    # A loop that trains may predict once in each epoch, but hardly a single sample.
    is_small = _is_one_sample(program, module, given) or _is_fitted(program, loop, given)
    return is_small and _is_of_round(loop, given)


def _is_fitted(program: Program, loop: Loop, given: ast.expr) -> bool:
    """Return whether each round predicts its element, and fits it once: a fold is fitted longer."""
    elements = _names(loop.target) if isinstance(loop, ast.For | ast.AsyncFor) else set()
    nodes = set(ast.walk(loop))
    for call in fits(program):
        fitted, epochs = call.argument(0, "x"), call.argument(None, "epochs")
        if call.node in nodes and fitted is not None and program.constant(call.module, epochs) == 1:
            if elements & _names(fitted) and elements & _names(given):
                return True
    return False


def _is_of_round(loop: Loop, given: ast.expr) -> bool:
    """Return whether a round gives its own data: an element of the loop, or a new state."""
    if isinstance(loop, ast.For | ast.AsyncFor):
        changed = _names(loop.target)
    else:
        changed = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value_names = _names(node.value) if node.value is not None else set()
            if isinstance(loop, ast.While) or value_names & changed:
                changed |= {name for target in targets for name in _names(target)}
    return bool(_names(given) & changed)


def _is_one_sample(program: Program, module: Module, given: ast.expr) -> bool:
    """Return whether data gets a first dimension of 1, here or where its name is bound."""
    if isinstance(given, ast.Name):
        values = (binding.value for _, binding in program.bindings(module, given))
        return any(_has_dimension_of_one(value) for value in values)
    return _has_dimension_of_one(given)


def _has_dimension_of_one(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Subscript):
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
        return _is(first, None) or last_name(first) == "newaxis"
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node.func)
    if name == "expand_dims":
        axis = argument(node, 1, "axis")
        return axis is not None and _is(axis, 0)
    if name == "reshape":
        # x.reshape(1, 4), x.reshape((1, 4)), np.reshape(x, (1, 4)).
        sizes = [each for arg in node.args for each in getattr(arg, "elts", [arg])]
        return any(_is(size, 1) for size in sizes[:2])
    if name in ("array", "asarray", "convert_to_tensor", "constant", "stack"):
        rows = node.args[0] if node.args else None
        return isinstance(rows, ast.List | ast.Tuple) and len(rows.elts) == 1
    return False


def _is(node: ast.AST, value: int | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
