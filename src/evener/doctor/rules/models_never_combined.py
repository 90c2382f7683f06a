"""DOC-207: several models, one for each device, that are never combined."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Kind, Module, Program
from evener.doctor.questions.makings import makings_of
from evener.doctor.questions.trainings import trains
from evener.doctor.rule import Case, Family, Rule

_COMBINING_METHODS = ("set_weights", "get_weights", "assign", "assign_add", "load_weights")
_COMBINING = (
    "keras.layers.Average",
    "keras.layers.average",
    "keras.layers.Concatenate",
    "keras.layers.concatenate",
    "keras.layers.Add",
    "keras.layers.add",
    "tf.add_n",
    "tf.stack",
    "tf.concat",
    "np.mean",
    "np.average",
    "np.stack",
)


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    if _combines(program):
        return
    devices = _by_device(program)
    names = {name for name, _, _, _ in devices}
    if len(names) < 2 and not any(in_loop for _, _, _, in_loop in devices):
        return
    if devices and trains(program):
        _, module, node, _ = devices[0]
        place = module.place(node)
        yield RULE.finding(
            place,
            "each device has a model of its own, and they are never combined.",
            why="Each model starts from weights of its own and trains on its own: the work of "
            "the devices does not add up to one trained model.",
            fix="make one model in `with strategy.scope():` and train that; the strategy spreads "
            "each batch and sums the gradients.",
            evidence=tuple(dict.fromkeys(m.place(n).text for _, m, n, _ in devices[:3])),
        )


def _by_device(program: Program) -> list[tuple[str, Module, ast.AST, bool]]:
    """Return the makings of models under ``tf.device``: device, place, whether in a loop."""
    found = []
    for call in program.all_calls:
        if Kind.MODEL not in program.kinds(call.module, call.node):
            continue
        for making in makings_of(program, call.module, call.node):
            if making.node is not call.node:
                continue
            device = _device_around(program, making.module, making.node)
            if device is not None:
                found.append((*device[:1], making.module, making.node, device[1]))
    kept = [one for one in found if not _differs_by_round(program, one)]
    made = [ast.unparse(node) for _, _, node, _ in kept]
    # Two models that are made differently are two stages or rivals, not copies of one.
    return [one for one in kept if one[3] or made.count(ast.unparse(one[2])) > 1]


def _device_around(program: Program, module: Module, node: ast.AST) -> tuple[str, bool] | None:
    for context in program.around.contexts(module, node):
        if not isinstance(context, ast.Call) or not context.args:
            continue
        if program.name_of(module, context.func) != "tf.device":
            continue
        name = ast.unparse(context.args[0])
        loops = list(program.around.loops(module, context)) or _rounds(program, module, context)
        constant = isinstance(context.args[0], ast.Constant)
        if "cpu" in name.lower():
            return None
        return name, bool(loops) and not constant
    return None


def _rounds(program: Program, module: Module, context: ast.Call) -> list[ast.AST]:
    """Return the list of devices that a name goes through, in a comprehension or elsewhere."""
    given = context.args[0]
    if not isinstance(given, ast.Name | ast.Attribute):
        return []
    found = list[ast.AST]()
    for value in program.origins(module, given):
        owner = value.node.value if isinstance(value.node, ast.Attribute) else None
        taken = program.origins(value.module, owner) if owner is not None else (value,)
        found += [one.node for one in taken if one.steps == ("each",)]
    return found


def _differs_by_round(program: Program, one: tuple[str, Module, ast.AST, bool]) -> bool:
    """Return whether the models are made with other settings each: a search, not one model."""
    _, module, node, in_loop = one
    if not in_loop or not isinstance(node, ast.Call):
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg != "name")]
    counted = {
        name.id
        for loop in program.around.loops(module, node)
        if isinstance(loop, ast.For)
        for name in ast.walk(loop.target)
        if isinstance(name, ast.Name)
    }
    return any(
        isinstance(name, ast.Name) and name.id in counted
        for argument in given
        for name in ast.walk(argument)
    )


def _combines(program: Program) -> bool:
    for call in program.all_calls:
        method = call.method
        if call.name in _COMBINING or method in _COMBINING_METHODS:
            return True
        if method in ("scope", "run") and "strategy" in ast.unparse(call.node.func).lower():
            return True
    return False


RULE = Rule(
    code="DOC-207",
    family=Family.DISTRIBUTION,
    title="several models, one per device, never combined",
    severity=Severity.WARNING,
    look=_look,
)
