"""DOC-403: a tf.function is traced again and again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import FUNCTIONS, Call, Function, Kind, Module, Place, Program, argument
from evener.doctor.program.values import Value
from evener.doctor.questions.compiled import compiles
from evener.doctor.questions.steps import fits, steps_of
from evener.doctor.questions.texts import place_at, shown
from evener.doctor.rule import Case, Family, Rule

# So many traces of one function are more than the first steps need.
_MANY = 5


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    yield from _made_again(program)
    yield from _python_numbers(program)
    yield from _changing_shapes(program)
    yield from _padded_to_longest(program)
    yield from _compiled_again(program)
    yield from _seen(case)


# ---- made in a loop


def _made_again(program: Program) -> Iterator[Finding]:
    for module, node in program.nodes(ast.FunctionDef):
        if isinstance(node, ast.FunctionDef):
            decorator = _decorator(program, module, node)
            if decorator is not None and _is_made_often(program, module, node, node.name):
                yield _made_finding(module.place(decorator), node.name)
    for call in program.calls("tf.function"):
        parent = call.module.parents.get(call.node)
        if isinstance(parent, ast.FunctionDef | ast.keyword) or not call.node.args:
            continue
        if isinstance(parent, ast.Call) and parent.func is not call.node:
            continue
        if isinstance(parent, ast.Return):
            yield from _returned_often(program, call)
            continue
        if _is_made_often(program, call.module, call.node, _bound_to(parent)):
            yield _made_finding(call.place, shown(call.node.args[0]))


def _returned_often(program: Program, call: Call) -> Iterator[Finding]:
    """Find calls in a loop of a function that makes a traced one and returns it."""
    function = program.around.function(call.module, call.node)
    for site in program.call_sites(function) if function is not None else ():
        name = _bound_to(site.module.parents.get(site.call))
        loop = next(program.around.loops(site.module, site.call), None)
        if loop is None or name in ("", "self") or _is_kept(loop, name):
            continue
        if not _is_used_in(loop, name) or not _makes_nothing_new(program, site.module, loop):
            continue
        if not _is_given_things_of_round(loop, site.call):
            yield _made_finding(site.module.place(site.call), shown(site.call.func))


def _is_used_in(loop: ast.AST, name: str) -> bool:
    return any(
        isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == name
        for one in ast.walk(loop)
    )


def _decorator(program: Program, module: Module, function: ast.FunctionDef) -> ast.expr | None:
    for one in function.decorator_list:
        called = one.func if isinstance(one, ast.Call) else one
        if program.name_of(module, called) == "tf.function":
            return one
        if isinstance(one, ast.Call) and one.args:
            if program.name_of(module, one.args[0]) == "tf.function":
                return one
    return None


def _bound_to(parent: ast.AST | None) -> str:
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        return parent.targets[0].id
    # self.step = tf.function(...) is kept.
    return "" if isinstance(parent, ast.Call) else "self"


def _is_made_often(program: Program, module: Module, node: ast.AST, name: str) -> bool:
    """Return whether a traced function is made in a loop, or in a function that a loop calls."""
    if name == "self":
        return False
    loop = next(program.around.loops(module, node), None)
    if loop is not None:
        return _makes_nothing_new(program, module, loop) and not _is_kept(loop, name)
    function = program.around.function(module, node)
    if function is None or isinstance(function, ast.Lambda):
        return False
    if _is_returned(function, name) or _is_kept(function, name):
        return False
    sites = [site for site in program.call_sites(function) if site.way == "call"]
    return any(
        (around := next(program.around.loops(site.module, site.call), None)) is not None
        and _makes_nothing_new(program, site.module, around)
        and not _is_given_things_of_round(around, site.call)
        for site in sites
    )


def _is_given_things_of_round(loop: ast.AST, call: ast.Call) -> bool:
    """Return whether a call is for one of several things that a loop goes through: a new trace."""
    if not isinstance(loop, ast.For):
        return False
    if isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func).endswith("range"):
        return False
    names = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
    return any(isinstance(one, ast.Name) and one.id in names for one in ast.walk(call))


def _makes_nothing_new(program: Program, module: Module, loop: ast.AST) -> bool:
    """Return whether a loop goes on with one model; with a new one in each round it must trace."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Call):
            kinds = program.kinds(module, node)
            name = program.name_of(module, node.func)
            if name in ("keras.Sequential", "keras.Model") or name.startswith("tf.distribute."):
                return False
            made = any(isinstance(one, ast.ClassDef) for _, one in program.targets(module, node))
            if Kind.MODEL in kinds and (made or any(program.targets(module, node))):
                return False
    return True


def _is_kept(top: ast.AST, name: str) -> bool:
    """Return whether it is stored in something that outlives the round."""
    for node in ast.walk(top):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            if node.value.id == name and not isinstance(node.targets[0], ast.Name):
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("append", "setdefault") and any(
                isinstance(one, ast.Name) and one.id == name for one in node.args
            ):
                return True
    return False


def _is_returned(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None and name:
            for one in ast.walk(node.value):
                if isinstance(one, ast.Name) and one.id == name:
                    parent_call = any(
                        isinstance(call, ast.Call) and call.func is one
                        for call in ast.walk(node.value)
                    )
                    if not parent_call:
                        return True
    return False


def _made_finding(place: Place, name: str) -> Finding:
    return RULE.finding(
        place,
        f"the tf.function {name} is made anew in every round of a loop.",
        why="Each new one is traced at its first call, which takes as long as hundreds of steps; "
        "what was traced before is thrown away.",
        fix="make it once, before the loop, and give it what changes as tensors.",
    )


# ---- Python numbers


def _python_numbers(program: Program) -> Iterator[Finding]:
    for call in program.all_calls:
        target = _traced_target(program, call)
        if target is None or next(program.around.loops(call.module, call.node), None) is None:
            continue
        if program.around.is_traced(call.module, call.node) is not False:
            continue
        where, function = target
        if _has_signature(program, where, function):
            continue
        for given in (*call.node.args, *(keyword.value for keyword in call.node.keywords)):
            said = _changing_number(program, call.module, given)
            if said:
                yield RULE.finding(
                    call.place,
                    f"{getattr(function, 'name', 'a tf.function')} is given the Python number "
                    f"{shown(given)}, {said}.",
                    why="A tf.function is traced anew for every value of a Python number; only "
                    "tensors are arguments that may change.",
                    fix=f"tf.constant({shown(given)}), or count in a tf.Variable.",
                )
                break


def _traced_target(program: Program, call: Call) -> tuple[Module, Function] | None:
    for where, target in program.targets(call.module, call.node):
        if not isinstance(target, FUNCTIONS):
            continue
        if program.around.is_decorated(where, target, "tf.function"):
            return where, target
        if _is_wrapped_here(program, call, target):
            return where, target
    return None


def _is_wrapped_here(program: Program, call: Call, target: Function) -> bool:
    """Return whether what is called is ``tf.function(target)``, by the name it is called by."""
    function = call.node.func
    if not isinstance(function, ast.Name):
        return False
    for where, binding in program.bindings(call.module, function):
        made = binding.value
        if isinstance(made, ast.Call) and program.name_of(where, made.func) == "tf.function":
            return any(one is target for _, one in program.functions_of(where, made.args[0]))
    return False


def _has_signature(program: Program, module: Module, function: Function) -> bool:
    if isinstance(function, ast.Lambda) or isinstance(function, ast.AsyncFunctionDef):
        return False
    decorator = _decorator(program, module, function)
    return decorator is not None and "input_signature" in ast.unparse(decorator)


def _changing_number(program: Program, module: Module, node: ast.expr) -> str:
    """Say why an argument is a Python number that changes; ``""`` if it is none."""
    if isinstance(node, ast.BinOp):
        sides = [_changing_number(program, module, one) for one in (node.left, node.right)]
        tensors = {Kind.TENSOR, Kind.BATCH, Kind.VARIABLE, Kind.PER_REPLICA}
        if program.kinds(module, node) & tensors:
            return ""
        return next((one for one in sides if one), "")
    if isinstance(node, ast.Name):
        for where, binding in program.bindings(module, node):
            if isinstance(binding.statement, ast.For) and binding.value is not None:
                iterated = binding.value
                name = (
                    program.name_of(where, iterated.func) if isinstance(iterated, ast.Call) else ""
                )
                if name == "range" or name.endswith("trange"):
                    return "which changes in every round"
                if name == "enumerate" and binding.steps == ("each", 0):
                    return "which changes in every round"
            if isinstance(binding.statement, ast.For) and binding.value is not None:
                given = program.origins(where, binding.value, binding.steps)
                if given and all(_is_computed(program, one) for one in given):
                    return "which is computed anew in every round"
            if isinstance(binding.value, ast.Call) and not binding.steps:
                said = _changing_number(program, where, binding.value)
                if said and _is_in_loop_of(module, binding.statement, node):
                    return said
        return _is_counted(program, module, node)
    if isinstance(node, ast.Call):
        name = program.name_of(module, node.func)
        if name in ("float", "int") and node.args:
            if not isinstance(program.constant(module, node.args[0]), int | float):
                return "which is read from something that changes"
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("numpy", "item"):
            if node.func.attr == "item":
                return "which is read from a tensor"
    return ""


def _is_computed(program: Program, value: Value) -> bool:
    """Return whether a value is Python's arithmetic, with something in it that changes."""
    if value.steps or not isinstance(value.node, ast.BinOp):
        return False
    changes = False
    for one in ast.walk(value.node):
        if isinstance(one, ast.Call) and not program.name_of(value.module, one.func).startswith(
            "math."
        ):
            return False
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
            known = program.origins(value.module, one)
            if all(
                isinstance(end.node, ast.Call)
                and program.name_of(end.module, end.node.func) == "range"
                for end in known
            ):
                changes = True
            elif not all(isinstance(end.node, ast.Constant) or end.node is one for end in known):
                return False
    return changes


def _is_in_loop_of(module: Module, statement: ast.AST, use: ast.AST) -> bool:
    loops = [one for one in module.around(use) if isinstance(one, ast.For | ast.While)]
    return any(loop in module.around(statement) for loop in loops)


def _is_counted(program: Program, module: Module, node: ast.Name) -> str:
    """Say that a name is counted up by hand, from a Python number."""
    if not isinstance(program.constant(module, node), int | float):
        return ""
    if isinstance(program.constant(module, node), bool):
        return ""
    loop = next(program.around.loops(module, node), None)
    for one in ast.walk(loop) if loop is not None else ():
        if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name):
            if one.target.id == node.id and isinstance(one.op, ast.Add | ast.Mult | ast.Sub):
                return "which changes in every round"
    return ""


# ---- changing shapes


def _changing_shapes(program: Program) -> Iterator[Finding]:
    for loop, module in steps_of(program).loops.items():
        if not isinstance(loop, ast.For) or not _is_of_many_shapes(program, module, loop.iter):
            continue
        for node in ast.walk(loop):
            if not isinstance(node, ast.Call):
                continue
            for where, target in program.targets(module, node):
                if not isinstance(target, ast.FunctionDef):
                    continue
                decorator = _decorator(program, where, target)
                if decorator is None:
                    continue
                text = ast.unparse(decorator)
                if any(one in text for one in ("input_signature", "reduce_retracing", "relax")):
                    continue
                yield RULE.finding(
                    where.place(decorator),
                    f"{target.name} is traced again for every new shape of a batch.",
                    why="The batches are padded to their longest element each, and a tf.function "
                    "is traced anew for every shape that it has not seen.",
                    fix="@tf.function(reduce_retracing=True), an input_signature with None for "
                    "what changes, or padding to a fixed length.",
                    evidence=(where.place(decorator).text, module.place(loop).text),
                )


def _padded_to_longest(program: Program) -> Iterator[Finding]:
    """Find arrays as long as the longest of their round, given to a traced function."""
    for call in program.all_calls:
        target = _traced_target(program, call)
        loop = next(program.around.loops(call.module, call.node), None)
        if target is None or loop is None or _takes_any_shape(program, *target):
            continue
        for given in call.node.args:
            made = _made_as_long_as_needed(program, call.module, given, loop)
            if made is not None:
                yield RULE.finding(
                    call.place,
                    f"{shown(given)} has another shape in nearly every round.",
                    why="It is as long as the longest of its batch, and a tf.function is traced "
                    "anew for every shape that it has not seen.",
                    fix="@tf.function(reduce_retracing=True), an input_signature with None for "
                    "what changes, or padding to a fixed length.",
                    evidence=(call.module.place(made).text, call.place.text),
                )
                break


def _takes_any_shape(program: Program, module: Module, function: Function) -> bool:
    decorator = (
        _decorator(program, module, function) if isinstance(function, ast.FunctionDef) else None
    )
    text = "" if decorator is None else ast.unparse(decorator)
    return any(one in text for one in ("input_signature", "reduce_retracing", "relax"))


def _made_as_long_as_needed(
    program: Program, module: Module, node: ast.AST, loop: ast.AST
) -> ast.Call | None:
    """Return the call in a loop that makes an array as long as the longest of a batch."""
    for value in program.origins(module, node):
        made = value.node
        if not isinstance(made, ast.Call) or loop not in value.module.around(made):
            continue
        name = program.name_of(value.module, made.func)
        if name in ("tf.constant", "tf.convert_to_tensor", "np.array", "np.asarray") and made.args:
            found = _made_as_long_as_needed(program, value.module, made.args[0], loop)
            if found is not None:
                return found
        if name.endswith("pad_sequences"):
            return made if argument(made, 1, "maxlen") is None else None
        shape = argument(made, 0, "shape")
        if name in ("np.zeros", "np.ones", "np.full", "tf.zeros") and shape is not None:
            for one in shape.elts if isinstance(shape, ast.Tuple | ast.List) else [shape]:
                if _is_longest(program, value.module, one, loop):
                    return made
    return None


def _is_longest(program: Program, module: Module, node: ast.expr, loop: ast.AST) -> bool:
    return any(
        isinstance(value.node, ast.Call)
        and program.name_of(value.module, value.node.func) == "max"
        and loop in value.module.around(value.node)
        for value in program.origins(module, node)
    )


def _is_of_many_shapes(program: Program, module: Module, node: ast.expr) -> bool:
    waiting: list[tuple[Module, ast.AST]] = [(module, node)]
    seen: set[ast.AST] = set()
    while waiting and len(seen) < 40:
        where, one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if isinstance(one, ast.Call):
            method = one.func.attr if isinstance(one.func, ast.Attribute) else ""
            if method == "padded_batch":
                shapes = argument(one, 1, "padded_shapes")
                return (
                    shapes is None or "None" in ast.unparse(shapes) or "-1" in ast.unparse(shapes)
                )
            if method in ("bucket_by_sequence_length", "dense_to_ragged_batch", "ragged_batch"):
                return True
            if isinstance(one.func, ast.Attribute):
                waiting += [(v.module, v.node) for v in program.origins(where, one.func.value)]
            waiting += [(v.module, v.node) for a in one.args[:1] for v in program.origins(where, a)]
        elif isinstance(one, ast.Name | ast.Attribute):
            waiting += [(v.module, v.node) for v in program.origins(where, one)]
    return False


# ---- compile in a loop


def _compiled_again(program: Program) -> Iterator[Finding]:
    for call in compiles(program):
        loop = next(program.around.loops(call.module, call.node), None)
        if loop is None or not _makes_nothing_new(program, call.module, loop):
            continue
        if any(loop in fit.module.around(fit.node) for fit in fits(program)):
            if _changes_model(loop):
                continue
            yield RULE.finding(
                call.place,
                f"{shown(call.owner or call.node)} is compiled again in every round of a loop.",
                why="compile throws away the traced step and the optimizer with its state: every "
                "round traces anew, and begins without momentum.",
                fix="compile once, before the loop.",
            )


def _changes_model(loop: ast.AST) -> bool:
    """Return whether the loop changes what is trained, which takes another compile."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Attribute) and node.attr in ("trainable", "clone_model"):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("clear_session", "add", "pop", "load_model", "set_weights"):
                return True
            if node.func.attr == "load_weights":
                return True
    return False


# ---- what a run has shown


def _seen(case: Case) -> Iterator[Finding]:
    for one in case.seen.traced if case.seen is not None else ():
        if one.where is None:
            continue
        if one.num_traces < _MANY and one.num_made < _MANY:
            continue
        how = (
            f"traced {one.num_traces} times in {one.num_calls} calls"
            if one.num_traces >= one.num_made
            else f"made {one.num_made} times"
        )
        yield RULE.finding(
            place_at(case.program, one.where.file, one.where.line),
            f"{one.name} was {how}.",
            why="Tracing takes as long as hundreds of steps.",
            fix="give it tensors of the same shapes and dtypes, and make it once.",
            evidence=(f"seen: {how}", *(f"traced for {shape}" for shape in one.arguments)),
        )


RULE = Rule(
    code="DOC-403",
    family=Family.SPEED,
    title="a tf.function traced again and again",
    severity=Severity.WARNING,
    look=_look,
)
