"""DOC-105: memory growth, logical or visible devices are set after the devices were started."""

from __future__ import annotations

from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.questions.branches import catching
from evener.doctor.questions.raised import raised_place
from evener.doctor.questions.starts import starting_calls
from evener.doctor.rule import Case, Family, Rule

_SETTERS = {
    "tf.config.set_memory_growth": "memory growth",
    "tf.config.set_logical_device_configuration": "logical devices",
    "tf.config.set_virtual_device_configuration": "logical devices",
    "tf.config.set_visible_devices": "visible devices",
}
_MESSAGE = "devices cannot be modified after being initialized"


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    starting = starting_calls(program)
    for call in program.calls(*_SETTERS):
        if not starting or not program.order.is_before(starting[0].node, call.node):
            continue
        first = starting[0].place
        caught = catching(call.module, call.node) is not None
        what = _SETTERS[call.name]
        yield RULE.finding(
            call.place,
            f"{what} set too late: line {first.line} has started the devices.",
            why="TensorFlow then raises RuntimeError: ..."
            + _MESSAGE
            + "."
            + (" The program catches it and goes on without the setting." if caught else ""),
            fix=f"move this before line {first.line}, best right after the import.",
            evidence=(first.text, call.place.text),
            severity=Severity.WARNING if caught else None,
        )
    place = raised_place(case, _MESSAGE)
    if place is not None:
        yield RULE.finding(
            place,
            "the devices are set too late: they have been started before.",
            why="The run ended here: RuntimeError: ..." + _MESSAGE + ".",
            fix="move this right after the import of TensorFlow.",
        )


RULE = Rule(
    code="DOC-105",
    family=Family.DEVICES,
    title="devices set too late",
    severity=Severity.ERROR,
    look=_look,
)
