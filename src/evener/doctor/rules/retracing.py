"""DOC-403: a tf.function is traced again and again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import FUNCTIONS, Call, Kind, Location, Module, Program, argument
from evener.doctor.queries.source_text import observed_location, shown
from evener.doctor.queries.steps import steps_of
from evener.doctor.queries.training import compiles, fits
from evener.doctor.rule import Case, Violation

# More traces of one function than the first steps need.
_MANY = 5
# Arguments of tf.function with which it is not traced for every new shape.
_ANY_SHAPE = ("input_signature", "reduce_retracing", "relax")
# After these a model has to be compiled again.
_CHANGES = ("clear_session", "add", "pop", "load_model", "set_weights", "load_weights")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    yield from _created_in_loop(program)
    yield from _python_numbers(program)
    yield from _changing_shapes(program)
    yield from _compiled_in_loop(program)
    for traced in case.observation.traced if case.observation is not None else ():
        if traced.where is not None and max(traced.num_traces, traced.num_made) >= _MANY:
            yield Violation(
                observed_location(program, traced.where),
                f"{traced.name} was traced {traced.num_traces} times in {traced.num_calls} calls, "
                f"and created {traced.num_made} times.",
                why="Tracing takes as long as hundreds of steps.",
                fix="give it tensors of the same shapes and dtypes, and create it once.",
                evidence=tuple(f"traced for {shape}" for shape in traced.arguments),
            )


def _created_in_loop(program: Program) -> Iterator[Violation]:
    found: list[tuple[Location, ast.AST, Module, str]] = []
    for module, node in program.nodes(ast.FunctionDef):
        decorator = program.context.decorator(module, node, "tf.function")
        if decorator is not None:
            name = getattr(node, "name", "")
            found.append((module.location(decorator), node, module, name))
    for call in program.calls("tf.function"):
        parent = call.module.parents.get(call.node)
        if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            found.append((call.location, call.node, call.module, parent.targets[0].id))
    for location, node, module, name in found:
        if _is_in_loop(program, module, node, name):
            yield Violation(
                location,
                f"the tf.function {name} is created in every iteration of a loop.",
                why="Each new one is traced at its first call, which takes as long as hundreds of "
                "steps.",
                fix="create it once, before the loop, and give it what changes as tensors.",
            )


def _is_in_loop(program: Program, module: Module, node: ast.AST, name: str) -> bool:
    """Return whether a loop creates a function in each iteration, itself or in what it calls."""
    loop = next(program.context.loops(module, node), None)
    if loop is not None:
        return not _creates_model(program, module, loop) and not _outlives(loop, name)
    function = program.context.function(module, node)
    if function is None or _outlives(function, name):
        return False
    return any(
        site.way == "call"
        and (around := next(program.context.loops(site.module, site.call), None)) is not None
        and not _creates_model(program, site.module, around)
        and not _is_for_element(around, site.call)
        for site in program.call_sites(function)
    )


def _is_for_element(loop: ast.AST, call: ast.Call) -> bool:
    """Return whether a call is given the loop's element: each element may need a trace."""
    if not isinstance(loop, ast.For) or ast.unparse(loop.iter).startswith("range("):
        return False
    names = {part.id for part in ast.walk(loop.target) if isinstance(part, ast.Name)}
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(call))


def _creates_model(program: Program, module: Module, loop: ast.AST) -> bool:
    """Return whether a loop creates a model or strategy, for which it has to trace again."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Call):
            name = program.name_of(module, node.func)
            if name.startswith("tf.distribute.") or Kind.MODEL in program.kinds(module, node):
                return True
    return False


def _outlives(block: ast.AST, name: str) -> bool:
    """Return whether a function is returned, or stored in an attribute or a container."""
    for node in ast.walk(block):
        value = node.value if isinstance(node, ast.Return | ast.Assign) else None
        if isinstance(value, ast.Name) and value.id == name:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                return True
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "append":
            if any(isinstance(value, ast.Name) and value.id == name for value in node.args):
                return True
    return False


def _python_numbers(program: Program) -> Iterator[Violation]:
    for call in program.all_calls:
        decorator = _decorator_of_target(program, call)
        if decorator is None or "input_signature" in ast.unparse(decorator):
            continue
        if program.context.is_traced(call.module, call.node) is not False:
            continue
        for given in call.node.args:
            if _is_loop_counter(program, call.module, given):
                yield Violation(
                    call.location,
                    f"{shown(call.node.func)} is given the Python number {shown(given)}, which "
                    "changes in every iteration.",
                    why="A tf.function is traced again for every value of a Python number, but "
                    "not for the values of a tensor.",
                    fix=f"tf.constant({shown(given)}), or count in a tf.Variable.",
                )
                break


def _decorator_of_target(program: Program, call: Call) -> ast.expr | None:
    """Return the `tf.function` above the function that is called; None without one."""
    for where, target in program.targets(call.module, call.node):
        decorator = program.context.decorator(where, target, "tf.function")
        if isinstance(target, FUNCTIONS) and decorator is not None:
            return decorator
    return None


def _is_loop_counter(program: Program, module: Module, node: ast.expr) -> bool:
    if not isinstance(node, ast.Name):
        return False
    for where, binding in program.bindings(module, node):
        if isinstance(binding.statement, ast.For) and isinstance(binding.value, ast.Call):
            name = program.name_of(where, binding.value.func)
            if name == "range" or (name == "enumerate" and binding.steps == ("each", 0)):
                return True
    return False


def _changing_shapes(program: Program) -> Iterator[Violation]:
    for loop, module in steps_of(program).loops.items():
        if not isinstance(loop, ast.For) or not _is_padded_per_batch(program, module, loop.iter):
            continue
        for call in (
            inner for inner in program.all_calls if loop in inner.module.around(inner.node)
        ):
            decorator = _decorator_of_target(program, call)
            if decorator is None or any(option in ast.unparse(decorator) for option in _ANY_SHAPE):
                continue
            name = shown(call.node.func)
            location = next(
                where.location(decorator) for where, _ in program.targets(call.module, call.node)
            )
            yield Violation(
                location,
                f"{name} is traced again for every new shape of a batch.",
                why="Each batch is padded to its longest element, and a tf.function is traced for "
                "every shape that it has not seen.",
                fix="@tf.function(reduce_retracing=True), an input_signature with None for the "
                "size that changes, or padding to a fixed length.",
                evidence=(location.text, module.location(loop).text),
            )


def _is_padded_per_batch(program: Program, module: Module, node: ast.expr) -> bool:
    """Return whether the elements of a dataset are padded to the longest one of their batch."""
    waiting: list[tuple[Module, ast.AST]] = [(module, node)]
    seen: set[ast.AST] = set()
    while waiting:
        where, current = waiting.pop()
        for value in program.origins(where, current):
            made = value.node
            if made in seen or not isinstance(made, ast.Call):
                continue
            seen.add(made)
            method = made.func.attr if isinstance(made.func, ast.Attribute) else ""
            if method == "padded_batch":
                shapes = argument(made, 1, "padded_shapes")
                text = "None" if shapes is None else ast.unparse(shapes)
                return "None" in text or "-1" in text
            if isinstance(made.func, ast.Attribute):
                waiting.append((value.module, made.func.value))
            waiting += [(value.module, given) for given in made.args[:1]]
    return False


def _compiled_in_loop(program: Program) -> Iterator[Violation]:
    for call in compiles(program):
        loop = next(program.context.loops(call.module, call.node), None)
        if loop is None or _creates_model(program, call.module, loop):
            continue
        names = {part.attr for part in ast.walk(loop) if isinstance(part, ast.Attribute)}
        if names & {"trainable", *_CHANGES}:
            continue
        if any(loop in fit.module.around(fit.node) for fit in fits(program)):
            yield Violation(
                call.location,
                f"{shown(call.owner or call.node)} is compiled again in every iteration of a loop.",
                why="compile discards the traced step and the optimizer's state: every iteration "
                "traces again and begins without momentum.",
                fix="compile once, before the loop.",
            )
