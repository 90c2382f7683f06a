"""Which functions of a program are traced by `tf.function`, and for which arguments anew."""

from __future__ import annotations

import ast

from evener.doctor.program import FUNCTIONS, Call, Function, Module, Program

# What keeps a function from being traced for every new shape.
_ANY_SHAPE = ("input_signature", "reduce_retracing", "relax")


def traced_target(program: Program, call: Call) -> tuple[Module, Function] | None:
    """Return the traced function that a call leads to; None if it leads to none."""
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
            given = [one for arg in made.args[:1] for _, one in program.functions_of(where, arg)]
            return any(one is target for one in given)
    return False


def has_signature(program: Program, module: Module, function: Function) -> bool:
    """Return whether a traced function says of which shapes and dtypes its arguments are."""
    decorator = program.around.decorator(module, function, "tf.function")
    return decorator is not None and "input_signature" in ast.unparse(decorator)


def takes_any_shape(program: Program, module: Module, function: Function) -> bool:
    """Return whether a traced function is told that shapes will change."""
    decorator = program.around.decorator(module, function, "tf.function")
    text = "" if decorator is None else ast.unparse(decorator)
    return any(one in text for one in _ANY_SHAPE)
