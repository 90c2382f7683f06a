"""DOC-105: memory growth, logical or visible devices are set after the devices were started."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Program
from evener.doctor.finding import Severity
from evener.doctor.queries.branches import catching
from evener.doctor.queries.device_initialization import is_too_late, starting_calls
from evener.doctor.rule import Case, Violation

_GROWTH = "tf.config.set_memory_growth"
_SETTERS = {
    _GROWTH: "memory growth",
    "tf.config.set_logical_device_configuration": "logical devices",
    "tf.config.set_virtual_device_configuration": "logical devices",
    "tf.config.set_visible_devices": "visible devices",
}
_MESSAGE = "devices cannot be modified after being initialized"


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    starting = starting_calls(program)
    for call in program.calls(*_SETTERS):
        if not is_too_late(program, call.node) or _is_set_already(program, call):
            continue
        first = starting[0].location
        caught = catching(call.module, call.node) is not None
        what = _SETTERS[call.name]
        yield Violation(
            call.location,
            f"{what} set too late: line {first.line} has started the devices.",
            why="TensorFlow then raises RuntimeError: ..."
            + _MESSAGE
            + "."
            + (" The program catches it and goes on without the setting." if caught else ""),
            fix=f"move this before line {first.line}, best right after the import.",
            evidence=(first.text, call.location.text),
            severity=Severity.WARNING if caught else None,
        )


def _is_set_already(program: Program, call: Call) -> bool:
    """Return whether memory growth was set in time, and is set to the same once more.

    TensorFlow compares first, and raises only where something would change.
    """
    if call.name != _GROWTH:
        return False
    for earlier in program.calls(_GROWTH):
        is_earlier = program.order.is_before(earlier.node, call.node)
        if not is_earlier or is_too_late(program, earlier.node) or not _says_same(earlier, call):
            continue
        if _is_of_every_gpu(program, earlier):
            return True
        if not _is_of_every_gpu(program, call) and _device(earlier) == _device(call):
            return True
    return False


def _says_same(setting: Call, other: Call) -> bool:
    given = [call.argument(1, "enable") for call in (setting, other)]
    return len({ast.unparse(each) if each is not None else "" for each in given}) == 1


def _is_of_every_gpu(program: Program, call: Call) -> bool:
    """Return whether a call stands in a loop over a list of devices."""
    given = call.argument(0, "device")
    if not isinstance(given, ast.Name):
        return False
    bindings = list(program.bindings(call.module, given))
    return bool(bindings) and all(
        binding.steps == ("each",)
        and binding.value is not None
        and not isinstance(binding.value, ast.Subscript)
        for _, binding in bindings
    )


def _device(call: Call) -> str:
    given = call.argument(0, "device")
    return "" if given is None else ast.unparse(given)
