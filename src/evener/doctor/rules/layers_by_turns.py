"""DOC-406: layers are dealt out to devices by turns, and everything moves back and forth."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Kind, Module, Program
from evener.doctor.questions.pins import Pin, pins_of
from evener.doctor.questions.steps import steps_of
from evener.doctor.questions.texts import place_at
from evener.doctor.rule import Case, Family, Rule

# What one link between two devices moves in a second, at the best of today's buses.
_BYTES_PER_SECOND = 25e9
_MUCH = 0.5


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    for pin in pins_of(program):
        loop = _dealing_loop(program, pin)
        if loop is not None:
            yield _finding(pin, (pin.module.place(loop).text, pin.place.text))
    yield from _back_and_forth(program)
    yield from _measured(case)


def _finding(pin: Pin, evidence: tuple[str, ...]) -> Finding:
    return RULE.finding(
        pin.place,
        "neighbouring layers are put on different devices by turns.",
        why="What each layer gives has to be copied to the next device, and its gradient back: "
        "the copies take longer than the layers, and only one device works at a time.",
        fix="give each device one run of neighbouring layers, the first half and the second, so "
        "that one tensor crosses; or let evener.Strategy(plan) cut the model into stages.",
        evidence=evidence,
    )


def _dealing_loop(program: Program, pin: Pin) -> ast.For | None:
    """Return the loop over layers in which a block takes its device by turns."""
    for loop in program.around.loops(pin.module, pin.block):
        if not isinstance(loop, ast.For):
            continue
        if not _goes_round(program, pin, loop):
            continue
        if loop in steps_of(program).loops or _is_over_data(program, pin.module, loop):
            return None
        if _chains(program, pin, loop):
            return loop
    return None


def _goes_round(program: Program, pin: Pin, loop: ast.For) -> bool:
    """Return whether the device changes with the round, and comes again."""
    given = pin.call.args[0] if pin.call.args else None
    if given is None:
        return False
    texts = [given]
    texts += [
        value.node
        for one in ast.walk(given)
        if isinstance(one, ast.Name)
        for _, binding in program.bindings(pin.module, one)
        for value in program.origins(pin.module, binding.value or one)
        if isinstance(value.node, ast.expr)
    ]
    texts += [
        binding.value
        for one in ast.walk(given)
        if isinstance(one, ast.Name)
        for _, binding in program.bindings(pin.module, one)
        if binding.value is not None
    ]
    for text in texts:
        for node in ast.walk(text):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                if not isinstance(node.left, ast.Constant):
                    return True
            if isinstance(node, ast.BitAnd):
                return True
    names = {one.id for one in ast.walk(given) if isinstance(one, ast.Name)}
    targets = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
    cycles = "cycle(" in ast.unparse(loop.iter) or any(
        isinstance(value.node, ast.Call)
        and program.name_of(value.module, value.node.func) == "itertools.cycle"
        for one in ast.walk(loop.iter)
        if isinstance(one, ast.Name)
        for value in program.origins(pin.module, one)
    )
    in_next = any(
        isinstance(one, ast.Call) and program.name_of(pin.module, one.func) == "next"
        for one in ast.walk(given)
    )
    return (cycles and bool(names & targets)) or in_next


def _is_over_data(program: Program, module: Module, loop: ast.For) -> bool:
    kinds = program.kinds(module, loop.iter, ("each",)) | program.kinds(module, loop.iter)
    return bool(kinds & {Kind.DATASET, Kind.DISTRIBUTED, Kind.BATCH, Kind.PER_REPLICA})


def _chains(program: Program, pin: Pin, loop: ast.For) -> bool:
    """Return whether each round goes on with what the round before gave."""
    for statement in pin.block.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = ast.unparse(node.targets[0])
                used = {
                    ast.unparse(one) for one in ast.walk(node.value) if isinstance(one, ast.Name)
                }
                if target in used and isinstance(node.value, ast.Call | ast.BinOp):
                    return True
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                # Layers that are gathered, to be called one after the other.
                if node.func.attr in ("append", "add") and node.args:
                    kinds = program.kinds(pin.module, node.args[0])
                    if Kind.LAYER in kinds and Kind.MODEL not in kinds:
                        return True
    return False


def _back_and_forth(program: Program) -> Iterator[Finding]:
    """Find one function that goes from device to device and back several times."""
    by_function: dict[ast.AST, list[Pin]] = {}
    for pin in pins_of(program):
        function = program.around.function(pin.module, pin.block) or pin.module.tree
        parent = pin.module.parents.get(pin.block)
        if isinstance(parent, ast.With) and any(one.block is parent for one in pins_of(program)):
            continue
        by_function.setdefault(function, []).append(pin)
    for pins in by_function.values():
        gpus = [pin for pin in pins if pin.device.startswith("GPU")]
        returns = [
            pin
            for index, pin in enumerate(gpus)
            if index > 1
            and pin.device != gpus[index - 1].device
            and pin.device in {one.device for one in gpus[: index - 1]}
        ]
        if len(returns) > 1 and _are_chained(gpus):
            yield _finding(returns[0], tuple(pin.place.text for pin in gpus))


def _are_chained(pins: list[Pin]) -> bool:
    """Return whether each block goes on with a name that the block before has assigned."""
    links = 0
    assigned: set[str] = set()
    for pin in pins:
        used, now = set[str](), set[str]()
        for statement in pin.block.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name):
                    (now if isinstance(node.ctx, ast.Store) else used).add(node.id)
        links += bool(assigned & used)
        assigned = now
    return links >= len(pins) - 1


def _measured(case: Case) -> Iterator[Finding]:
    seen = case.seen
    if seen is None or seen.steps is None or seen.steps.step_seconds <= 0 or not seen.copied:
        return
    total = sum(one.num_bytes for one in seen.copied)
    seconds = total / _BYTES_PER_SECOND
    if seconds < _MUCH * seen.steps.step_seconds:
        return
    most = max(seen.copied, key=lambda one: one.num_bytes)
    if most.where is None:
        return
    yield RULE.finding(
        place_at(case.program, most.where.file, most.where.line),
        f"{total / 1e6:.1f} MB are copied between devices in one step.",
        why=f"At {_BYTES_PER_SECOND / 1e9:.0f} GB/s that takes {1000 * seconds:.1f} ms, of a step "
        f"of {1000 * seen.steps.step_seconds:.1f} ms.",
        fix="keep neighbouring layers on one device; evener audit names every copy.",
        evidence=tuple(
            f"seen: {one.num_bytes} bytes from {one.source} to {one.target}" for one in seen.copied
        )[:10],
    )


RULE = Rule(
    code="DOC-406",
    family=Family.SPEED,
    title="layers dealt out to devices by turns",
    severity=Severity.WARNING,
    look=_look,
)
