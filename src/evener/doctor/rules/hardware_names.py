"""RUN-008: the name of a piece of hardware where a logical device is wanted."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Program
from evener.doctor.questions.device_names import Named, named_devices
from evener.doctor.questions.raised import raised_place
from evener.doctor.rule import Case, Family, Rule

_HARDWARE = "physical_device:"
_PHYSICAL = ("tf.config.list_physical_devices", "tf.config.get_visible_devices")
_WHY = (
    "tf.config.list_physical_devices gives hardware, and its names are for tf.config alone; "
    "TensorFlow raises ValueError: Unknown attribute 'physical_device'."
)


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    lines = set[int]()
    for named in named_devices(program):
        if _is_hardware(program, named):
            lines.add(named.place.line)
            origin = named.module.place(named.node)
            yield RULE.finding(
                named.place,
                f"{ast.unparse(named.call.node.func)} is given the name of a piece of hardware.",
                why=_WHY,
                fix="take the devices from tf.config.list_logical_devices('GPU'), or write the "
                "name as '/GPU:0'; to use all GPUs, leave tf.device out and call the step by "
                "strategy.run.",
                evidence=tuple(dict.fromkeys((named.place.text, origin.text))),
            )
    place = raised_place(case, "Unknown attribute 'physical_device'", codes=("RUN-008",))
    if place is not None and place.line not in lines:
        yield RULE.finding(
            place,
            "this names a piece of hardware where a logical device is wanted.",
            why="The run ended here. " + _WHY,
            fix="take the devices from tf.config.list_logical_devices('GPU').",
        )


def _is_hardware(program: Program, named: Named) -> bool:
    node = named.node
    if _HARDWARE in (named.text or "") or _begins_with_hardware(node):
        return True
    if isinstance(node, ast.Attribute) and node.attr == "name":
        return _is_physical(program, named, node.value)
    if isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute):
        name = program.name_of(named.module, node.func)
        return name == "str" and any(
            isinstance(one, ast.Attribute) and _is_physical(program, named, one.value)
            for one in node.args
        )
    # The device itself, as a list of hardware gives it.
    return _is_physical(program, named, node)


def _begins_with_hardware(node: ast.AST) -> bool:
    first = next((one for one in ast.walk(node) if isinstance(one, ast.Constant)), None)
    text = "" if first is None else str(first.value)
    is_text = isinstance(node, ast.JoinedStr | ast.BinOp | ast.Call)
    return is_text and text.lstrip("/").startswith(_HARDWARE)


def _is_physical(program: Program, named: Named, node: ast.AST) -> bool:
    for value in program.origins(named.module, node):
        if isinstance(value.node, ast.Call):
            if program.name_of(value.module, value.node.func) in _PHYSICAL:
                return True
    return False


RULE = Rule(
    code="RUN-008",
    family=Family.DEVICES,
    title="name of hardware where a logical device is wanted",
    severity=Severity.ERROR,
    look=_look,
)
