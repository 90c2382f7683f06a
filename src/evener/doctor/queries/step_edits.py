"""Edits that put a training step under `tf.function`, where that certainly changes no result."""

from __future__ import annotations

import ast

from evener.analysis import Call, Function, Kind, Module, Program
from evener.analysis.hoisting.statements import obstacle_in
from evener.doctor.edit import Edit, inserted

# A step that calls deeper than this is not followed.
_DEEPEST = 6


def edits_of_step(program: Program, call: Call) -> tuple[Edit, ...]:
    """Return the edits that decorate the function that ``strategy.run`` is given.

    TensorFlow runs such a function for all replicas in one graph. Empty if the function does
    anything besides computing on its batch and updating variables.

    Args:
        program: The program.
        call: A call of ``strategy.run`` in a loop over batches.
    """
    given = call.argument(0, "fn")
    found = list(program.functions_of(call.module, given)) if given is not None else []
    if len(found) != 1 or len(call.node.args) > 2 or call.argument(2, "kwargs") is not None:
        return ()
    module, step = found[0]
    if not isinstance(step, ast.FunctionDef) or step.decorator_list:
        return ()
    if not isinstance(module.parents[step], ast.Module | ast.ClassDef | ast.FunctionDef):
        return ()
    prefix = _name_of_tensorflow(program, module)
    is_certain = (
        _is_given_batches(program, call)
        and _computes_only(program, module, step, _DEEPEST)
        and _optimizers_are_built(program, module, step)
    )
    if not prefix or not is_certain:
        return ()
    line = module.source.split("\n")[step.lineno - 1]
    indent = line[: len(line) - len(line.lstrip())]
    return (inserted(module, (step.lineno, 0), f"{indent}@{prefix}.function\n"),)


def _name_of_tensorflow(program: Program, module: Module) -> str:
    """Return the name by which a module imports TensorFlow at its top, or ``""``."""
    for node in module.tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "tensorflow":
                    return alias.asname or alias.name
    return ""


def _is_given_batches(program: Program, call: Call) -> bool:
    """Return whether all arguments of a step are what the loop takes out of a dataset.

    Numbers of Python would be traced again for each value.
    """
    given = call.argument(1, "args")
    if not isinstance(given, ast.Tuple) or not given.elts:
        return False
    for loop in program.context.loops(call.module, call.node):
        if not isinstance(loop, ast.For):
            return False
        kinds = program.kinds(call.module, loop.iter)
        if kinds and kinds <= {Kind.DATASET, Kind.DISTRIBUTED}:
            targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            inner = [node for part in loop.body for node in ast.walk(part)]
            bound = {
                node.id
                for node in inner
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
            return all(isinstance(e, ast.Name) and e.id in names - bound for e in given.elts)
        return False
    return False


def _computes_only(program: Program, module: Module, function: Function, deepest: int) -> bool:
    """Return whether a function, and what it calls, has no effect but on variables."""
    if not isinstance(function, ast.FunctionDef) or not deepest:
        return False
    fresh: set[str] = set()
    for statement in function.body:
        checked: ast.stmt = statement
        if isinstance(statement, ast.Return):
            value = statement.value or ast.Constant(value=None)
            checked = ast.copy_location(ast.Expr(value=value), statement)
        if obstacle_in(checked, fresh, can_defer=False) is not None:
            return False
        fresh |= {
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
    return _reads_only_fixed(program, module, function, fresh) and _calls_only_such(
        program, module, function, deepest
    )


def _reads_only_fixed(
    program: Program, module: Module, function: ast.FunctionDef, own: set[str]
) -> bool:
    """Return whether what a function reads from outside never changes: a graph keeps it."""
    own = own | {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    changed = {
        node.attr
        for where, node in program.nodes(ast.Attribute)
        if isinstance(node.ctx, ast.Store | ast.Del) and not _is_in_init(program, where, node)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and node.attr in changed:
            return False
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in own:
            bindings = list(program.bindings(module, node))
            if len(bindings) > 1 or any(
                any(isinstance(outer, ast.For | ast.While) for outer in where.around(b.statement))
                for where, b in bindings
            ):
                return False
            if any(_is_counted(where, node.id) for where, _ in bindings):
                return False
    return True


def _is_in_init(program: Program, module: Module, node: ast.AST) -> bool:
    function = program.context.function(module, node)
    return isinstance(function, ast.FunctionDef) and function.name == "__init__"


def _is_counted(module: Module, name: str) -> bool:
    """Return whether a name is changed in place or by a function: ``count += 1``, ``global``."""
    return any(
        isinstance(node.target, ast.Name) and node.target.id == name
        for node in module.every(ast.AugAssign)
    ) or any(name in node.names for node in module.every(ast.Global, ast.Nonlocal))


def _calls_only_such(
    program: Program, module: Module, function: ast.FunctionDef, deepest: int
) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            for where, target in program.targets(module, node):
                if not isinstance(target, ast.FunctionDef):
                    return False
                if not _computes_only(program, where, target, deepest - 1):
                    return False
    return True


def _optimizers_are_built(program: Program, module: Module, step: ast.FunctionDef) -> bool:
    """Return whether no optimizer creates its slots in the step, which a graph cannot."""
    inside = set(ast.walk(step))
    built = {ast.unparse(owner) for _, owner in program.calls_of("build")}
    applied = [
        owner
        for call, owner in program.calls_of("apply_gradients", "apply", "minimize")
        if call.node in inside
    ]
    return bool(applied) and all(ast.unparse(owner) in built for owner in applied)
