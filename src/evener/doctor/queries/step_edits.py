"""Edits that put a training step under `tf.function`, where that certainly changes no result."""

from __future__ import annotations

import ast
import re

from evener.analysis import Call, Kind, Module, Program, last_name
from evener.doctor.edit import Edit, inserted
from evener.run.regions import obstacle_in

# A step that calls deeper than this is not followed.
_DEEPEST = 6
# Calls that compute the same in a graph. Not random ones: their seeds differ there.
_GRAPH_SAFE = re.compile(
    r"tf\.(math\.|nn\.|linalg\.|image\.)?[a-z]\w*|tf\.GradientTape|keras\.ops\.(nn\.)?[a-z]\w*"
    r"|keras\.losses\.[a-z]\w*"
)
_NOT_SAFE = re.compile(r"random|dropout|function|init_scope|py_func|shuffle|sampl|crop|nce_loss")
_OF_PYTHON = ("zip", "list", "tuple", "len", "dict")
_OBJECTS = frozenset(
    {Kind.MODEL, Kind.LAYER, Kind.OPTIMIZER, Kind.LOSS, Kind.METRIC, Kind.TAPE, Kind.VARIABLE}
)
_METHODS = (
    *("gradient", "watch", "apply_gradients", "apply", "update_state", "assign", "assign_add"),
    *("assign_sub", "call", "compute_loss", "scale_loss"),
)
# A tensor decides in a graph otherwise than in Python.
_BRANCHES = (
    *(ast.If, ast.For, ast.While, ast.IfExp, ast.BoolOp, ast.Assert, ast.Raise, ast.Starred),
    *(ast.NamedExpr, ast.JoinedStr, ast.Lambda, ast.FunctionDef, ast.ClassDef, ast.Await),
)


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
    if _has_own_equality(module.parents[step]):
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


def _has_own_equality(owner: ast.AST) -> bool:
    """Return whether objects of a class may be no keys, as those are that own a tf.function."""
    names = {
        name.id if isinstance(name, ast.Name) else getattr(name, "name", "")
        for node in getattr(owner, "body", [])
        for name in (node, *getattr(node, "targets", []))
    }
    return isinstance(owner, ast.ClassDef) and bool(names & {"__eq__", "__hash__", "__slots__"})


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


def _computes_only(program: Program, module: Module, function: ast.AST, deepest: int) -> bool:
    """Return whether a function, and what it calls, has no effect but on variables."""
    if not isinstance(function, ast.FunctionDef) or not deepest:
        return False
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    if any(isinstance(node, _BRANCHES) for node in nodes):
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
    # What is in a list or a table may change.
    changed |= {
        last_name(node.value)
        for _, node in program.nodes(ast.Subscript)
        if isinstance(node.ctx, ast.Store | ast.Del)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and node.attr in changed:
            return False
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in own:
            if node.id in changed:
                return False
            if any(_is_rebound(where, node.id) for where, _ in program.bindings(module, node)):
                return False
    return True


def _is_in_init(program: Program, module: Module, node: ast.AST) -> bool:
    function = program.context.function(module, node)
    return isinstance(function, ast.FunctionDef) and function.name == "__init__"


def _is_rebound(module: Module, name: str) -> bool:
    """Return whether a name may get another value: by a second line, a loop, ``global``."""
    stores = [
        node
        for node in module.every(ast.Name)
        if node.id == name and not isinstance(node.ctx, ast.Load)
    ]
    return (
        len(stores) > 1
        or any(name in node.names for node in module.every(ast.Global, ast.Nonlocal))
        or any(
            isinstance(outer, ast.For | ast.While)
            for store in stores
            for outer in module.around(store)
        )
    )


def _calls_only_such(
    program: Program, module: Module, function: ast.FunctionDef, deepest: int
) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            targets = list(program.targets(module, node))
            if not targets and not _is_safe(program, module, node):
                return False
            if not all(_computes_only(program, *target, deepest - 1) for target in targets):
                return False
    return True


def _is_safe(program: Program, module: Module, call: ast.Call) -> bool:
    """Return whether a call of something of a library computes the same in a graph."""
    name = program.name_of(module, call.func)
    if name:
        is_known = _GRAPH_SAFE.fullmatch(name) is not None and not _NOT_SAFE.search(name)
        return is_known or name in _OF_PYTHON
    if isinstance(call.func, ast.Name) and call.func.id in _OF_PYTHON:
        return True
    kinds = program.kinds(module, call.func)
    if isinstance(call.func, ast.Attribute) and not kinds:
        kinds = program.kinds(module, call.func.value)
        if call.func.attr not in _METHODS:
            return False
    return bool(kinds) and kinds <= _OBJECTS


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
