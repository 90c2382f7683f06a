"""DOC-207: several models, one for each device, that are never combined."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Kind, Program
from evener.doctor.queries.pins import Pin, pins_of
from evener.doctor.queries.training import trains
from evener.doctor.rule import Case, Violation

_COMBINING_METHODS = ("set_weights", "get_weights", "assign", "assign_add", "load_weights")
_COMBINING = (
    *(f"keras.layers.{layer}" for layer in ("Average", "average", "Concatenate", "concatenate")),
    *("keras.layers.Add", "keras.layers.add", "tf.add_n", "tf.stack", "tf.concat"),
    *("np.mean", "np.average", "np.stack"),
)


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if _combines(program) or not trains(program):
        return
    found = [(pin, model) for pin in pins_of(program) for model in _models(program, pin)]
    devices: dict[str, set[str]] = {}
    for pin, model in found:
        devices.setdefault(ast.unparse(model), set()).update([pin.device] if pin.device else [])
    for pin, model in found:
        # Models that are created differently are two stages or rivals, not copies.
        if _is_repeated(program, pin, model) or len(devices[ast.unparse(model)]) > 1:
            location = pin.module.location(model)
            yield Violation(
                location,
                "each device has a model of its own, and they are never combined.",
                why="Each model starts from its own weights and trains by itself: the work of the "
                "devices does not add up to one trained model.",
                fix="create one model in `with strategy.scope():` and train that; the strategy "
                "splits each batch and adds up the gradients.",
                evidence=(pin.location.text, location.text),
            )
            return


def _models(program: Program, pin: Pin) -> list[ast.Call]:
    """Return the calls under a device that create a model; none under a CPU."""
    if "cpu" in pin.named.lower():
        return []
    return [
        node
        for statement in pin.block.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and Kind.MODEL in program.kinds(pin.module, node)
    ]


def _is_repeated(program: Program, pin: Pin, model: ast.Call) -> bool:
    """Return whether a loop over devices creates a model of the same settings for each."""
    loop = next(program.context.loops(pin.module, pin.block), None)
    if not isinstance(loop, ast.For) or isinstance(pin.call.args[0], ast.Constant):
        return False
    names = {name.id for name in ast.walk(loop.target) if isinstance(name, ast.Name)}
    given = [*model.args, *(keyword.value for keyword in model.keywords if keyword.arg != "name")]
    return not any(
        isinstance(name, ast.Name) and name.id in names for part in given for name in ast.walk(part)
    )


def _combines(program: Program) -> bool:
    return any(
        call.name in _COMBINING
        or call.method in _COMBINING_METHODS
        or (call.method in ("scope", "run") and "strategy" in ast.unparse(call.node.func).lower())
        for call in program.all_calls
    )
