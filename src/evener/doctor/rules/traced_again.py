"""DOC-403: a tf.function is traced again and again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Call, Kind, Module, Place, Program
from evener.doctor.questions.changing import changing_number
from evener.doctor.questions.compiled import compiles
from evener.doctor.questions.shapes import is_of_many_shapes, made_as_long_as_needed
from evener.doctor.questions.steps import steps_of
from evener.doctor.questions.texts import place_at, shown
from evener.doctor.questions.traced import (
    has_signature,
    takes_any_shape,
    traced_target,
)
from evener.doctor.questions.trainings import fits
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
            decorator = program.around.decorator(module, node, "tf.function")
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
        target = traced_target(program, call)
        if target is None or next(program.around.loops(call.module, call.node), None) is None:
            continue
        if program.around.is_traced(call.module, call.node) is not False:
            continue
        where, function = target
        if has_signature(program, where, function):
            continue
        for given in (*call.node.args, *(keyword.value for keyword in call.node.keywords)):
            said = changing_number(program, call.module, given)
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


# ---- changing shapes


def _changing_shapes(program: Program) -> Iterator[Finding]:
    for loop, module in steps_of(program).loops.items():
        if not isinstance(loop, ast.For) or not is_of_many_shapes(program, module, loop.iter):
            continue
        for node in ast.walk(loop):
            if not isinstance(node, ast.Call):
                continue
            for where, target in program.targets(module, node):
                if not isinstance(target, ast.FunctionDef):
                    continue
                decorator = program.around.decorator(where, target, "tf.function")
                if decorator is None or takes_any_shape(program, where, target):
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
        target = traced_target(program, call)
        loop = next(program.around.loops(call.module, call.node), None)
        if target is None or loop is None or takes_any_shape(program, *target):
            continue
        for given in call.node.args:
            made = made_as_long_as_needed(program, call.module, given, loop)
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
