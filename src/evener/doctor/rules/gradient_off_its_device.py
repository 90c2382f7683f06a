"""DOC-301: gradients are computed on another device than their forward operations."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import FUNCTIONS, Call, Kind, Module, Program
from evener.doctor.questions.gradients import gradients_of
from evener.doctor.questions.pins import Pin, pins_around, pins_of
from evener.doctor.questions.trainings import fits
from evener.doctor.rule import Case, Family, Rule

_MESSAGES = ("print", "tf.print", "logging.", "logger.", "tf.summary.", "tf.get_logger")
_WHY = (
    "The operations that compute gradients carry no device of their own: TensorFlow puts them on "
    "the first one, or all on that of the block around them, and copies what they need."
)
_FIX = (
    "take the gradients by evener.pinned_gradients(loss, variables), which keeps each beside its "
    "forward operation; evener's strategies and fit do so by themselves."
)


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    if not pins_of(program):
        return
    reported: set[ast.AST] = set()
    for gradient in gradients_of(program):
        call = gradient.call
        if not isinstance(call.node.func, ast.Attribute) or call.node.func.attr != "gradient":
            continue
        around = pins_around(program, call.module, call.node)
        blocks = {pin.block for pin in around}
        pins = [pin for pin in _pins_of_forward(program, call) if pin.block not in blocks]
        if _is_off(pins, around):
            reported.update(pin.block for pin in pins)
            yield _finding(case, call, pins, around)
    yield from _under_fit(case, reported)


def _is_off(pins: list[Pin], around: list[Pin]) -> bool:
    """Return whether some forward work is not where the gradients are put."""
    devices = {pin.key for pin in pins}
    where = around[0].key if around else "GPU:0"
    return bool(devices - {where, "CPU:0"})


def _pins_of_forward(program: Program, gradient: Call) -> list[Pin]:
    """Return the pins in what the tape of a gradient records."""
    starts: list[tuple[Module, ast.AST]] = []
    for value in program.origins(gradient.module, gradient.owner or gradient.node):
        block = next(
            (one for one in value.module.around(value.node) if isinstance(one, ast.With)), None
        )
        if block is not None and any(item.context_expr is value.node for item in block.items):
            starts += [(value.module, one) for one in block.body]
    return _pins_below(program, starts)


def _pins_below(program: Program, starts: list[tuple[Module, ast.AST]]) -> list[Pin]:
    """Return the pins in some code and in the functions that it calls."""
    pins: dict[ast.AST, Pin] = {pin.block: pin for pin in pins_of(program)}
    found: list[Pin] = []
    waiting, seen = list(starts), set[ast.AST]()
    while waiting:
        module, top = waiting.pop()
        for node in ast.walk(top):
            if node in pins and node not in seen and _computes(pins[node]):
                seen.add(node)
                found.append(pins[node])
            if isinstance(node, ast.Call):
                for where, target in program.targets(module, node):
                    if isinstance(target, FUNCTIONS) and target not in seen:
                        seen.add(target)
                        waiting.append((where, target))
    return sorted(found, key=lambda pin: pin.block.lineno)


def _computes(pin: Pin) -> bool:
    """Return whether a block does more than take gradients and apply them."""
    for statement in pin.block.body:
        if _is_message(statement):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                if method not in ("gradient", "apply_gradients", "trainable_variables"):
                    return True
            elif isinstance(node, ast.BinOp):
                return True
    return False


def _is_message(statement: ast.stmt) -> bool:
    """Return whether a statement only tells a person something."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return ast.unparse(statement.value.func).startswith(_MESSAGES)


def _finding(case: Case, gradient: Call, pins: list[Pin], around: list[Pin]) -> Finding:
    where = around[0].device if around else "the first device"
    names = ", ".join(dict.fromkeys(pin.device or pin.named for pin in pins))
    return RULE.finding(
        gradient.place,
        f"forward runs on {names}, but its gradients are all computed on {where or 'one device'}.",
        why=_WHY,
        fix=_FIX,
        evidence=(*(pin.place.text for pin in pins), gradient.place.text, *_measured(case)),
    )


def _under_fit(case: Case, reported: set[ast.AST]) -> Iterator[Finding]:
    """Find pins in ``call`` of a model of which Keras's ``fit`` takes the gradients."""
    program = case.program
    for fit in fits(program):
        owner = fit.owner
        if owner is None:
            continue
        for module, definition in program.classes.of(fit.module, owner):
            if program.kind_of_class(module, definition) is not Kind.MODEL:
                continue
            if any(program.classes.attributes(module, definition, "train_step")):
                continue
            for where, method, _ in program.classes.attributes(module, definition, "call"):
                pins = _pins_below(program, [(where, method)])
                pins = [pin for pin in pins if pin.device not in ("GPU:0", "CPU:0")]
                if pins and pins[0].block not in reported:
                    reported.add(pins[0].block)
                    yield RULE.finding(
                        pins[0].place,
                        f"this part of {definition.name} runs on {pins[0].device or pins[0].named}"
                        ", but fit computes its gradients on the first device.",
                        why=_WHY,
                        fix=_FIX,
                        evidence=(*(pin.place.text for pin in pins), fit.place.text),
                    )


def _measured(case: Case) -> tuple[str, ...]:
    work = case.seen.work if case.seen is not None else ()
    return tuple(
        f"{one.device}: {one.num_gradients} gradient operations of {one.num_operations} in one step"
        for one in work
    )


RULE = Rule(
    code="DOC-301",
    family=Family.NUMBERS,
    title="gradients are computed off their device",
    severity=Severity.WARNING,
    look=_look,
)
