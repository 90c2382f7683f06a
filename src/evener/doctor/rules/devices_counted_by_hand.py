"""DOC-108: the number of devices is written into the program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Module, Place, Program, last_name
from evener.doctor.questions.device_names import named_devices
from evener.doctor.questions.gpus import means_gpus
from evener.doctor.questions.strategies import strategies, the_number_of_replicas
from evener.doctor.rule import Case, Family, Rule

_COUNT = re.compile(
    r"^(n|num|number_of|no_of|nb|total|count)?_?(of_)?"
    r"(gpus?|devices?|replicas?|towers?|gpu_count|device_count)(_(count|num|number))?$|"
    r"^(gpu|device|replica)s?_?(count|num)$|^world_size$",
    re.IGNORECASE,
)
_ARITHMETIC = (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_MAKING = ("set_logical_device_configuration", "set_virtual_device_configuration")


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    if not strategies(program) and not means_gpus(program):
        return
    found = dict[tuple[str, int], tuple[Place, str, list[Place]]]()
    for module, node in program.nodes(ast.BinOp, ast.AugAssign, ast.Call):
        for where, constant, name in _counts_in(program, module, node):
            definition = where.place(constant)
            entry = found.setdefault((definition.path, definition.line), (definition, name, []))
            entry[2].append(module.place(node))
    for definition, name, uses in found.values():
        if not _makes_as_many(program, name):
            yield _finding(program, definition, name, uses)
    yield from _bare(case)


def _counts_in(
    program: Program, module: Module, node: ast.AST
) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the written numbers of devices that an operation or ``range`` uses."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
        sides = [node.left, node.right]
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, _ARITHMETIC):
        sides = [node.value]
    elif isinstance(node, ast.Call) and program.name_of(module, node.func) == "range":
        sides = list(node.args[:2])
    elif isinstance(node, ast.Call) and program.name_of(module, node.func) in (
        "tf.split",
        "np.array_split",
        "np.split",
    ):
        sides = list(node.args[1:2])
    else:
        return
    for side in sides:
        name = last_name(side)
        if not _COUNT.match(name):
            continue
        for value in program.origins(module, side):
            if isinstance(value.node, ast.Constant) and _is_count(value.node.value):
                yield value.module, value.node, name


def _finding(program: Program, definition: Place, name: str, uses: list[Place]) -> Finding:
    first, made = uses[0], strategies(program)
    return RULE.finding(
        definition,
        f"the number of devices is written down: {name}.",
        why="On a machine with more GPUs the others idle; with fewer, or with one hidden, "
        f"batches and losses are scaled wrongly (line {first.line}).",
        fix=f"{name} = strategy.num_replicas_in_sync, or len(tf.config.list_logical_devices("
        "'GPU')) where there is no strategy.",
        evidence=tuple(dict.fromkeys((definition.text, *(use.text for use in uses[:3])))),
        # evener is told its devices by name; it scales nothing by their number.
        severity=Severity.HINT if all(one.is_evener for one in made) and made else None,
    )


def _makes_as_many(program: Program, name: str) -> bool:
    """Return whether the program makes, or names for its strategy, that many devices."""
    for call in program.all_calls:
        if any(
            one.arg and _COUNT.match(one.arg) and last_name(one.value) == name
            for one in call.node.keywords
        ):
            return True
        method = call.method
        if method in _MAKING or call.name.startswith(("tf.distribute.", "evener.")):
            names = [last_name(one) for one in ast.walk(call.node)]
            if name in names:
                return True
    for named in named_devices(program):
        if named.call.name == "tf.distribute.MirroredStrategy":
            for outer in (named.node, *named.module.around(named.node)):
                if isinstance(outer, ast.stmt):
                    break
                if isinstance(outer, ast.ListComp | ast.GeneratorExp):
                    if name in [last_name(one) for one in ast.walk(outer)]:
                        return True
    return False


def _bare(case: Case) -> Iterator[Finding]:
    """Find a batch or a loss scaled by a bare number that is the number of devices."""
    program, num_replicas = case.program, the_number_of_replicas(case)
    for module, node in program.nodes(ast.Call):
        assert isinstance(node, ast.Call)
        yield from _range_of_devices(program, module, node)
    if num_replicas is None or num_replicas < 2:
        return
    for module, node in program.nodes(ast.BinOp):
        assert isinstance(node, ast.BinOp)
        if _scales(program, module, node, num_replicas):
            place = module.place(node)
            yield RULE.finding(
                place,
                f"{ast.unparse(node)} counts the devices by hand.",
                why=f"{num_replicas} is right for this machine alone: on others the batch or the "
                "loss is scaled wrongly.",
                fix=f"write strategy.num_replicas_in_sync instead of {num_replicas}.",
            )


def _scales(program: Program, module: Module, node: ast.BinOp, num_replicas: int) -> bool:
    left, right = node.left, node.right
    if isinstance(node.op, ast.Mult):
        pairs = ((left, right), (right, left))
        return any(
            _is_number(one, num_replicas) and "batch" in last_name(other).lower()
            for other, one in pairs
        ) and not _is_buffer(program, module, node)
    if isinstance(node.op, ast.Div) and _is_number(right, num_replicas):
        named = "loss" in last_name(left).lower()
        return named and program.around.in_replica(module, node) is True
    return False


def _is_buffer(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether the product is the size of a buffer, as in ``shuffle(batch * 4)``."""
    for outer in module.around(node):
        if isinstance(outer, ast.Call):
            method = getattr(outer.func, "attr", getattr(outer.func, "id", ""))
            return method not in ("batch", "fit", "padded_batch", "int")
        if isinstance(outer, ast.Assign | ast.AnnAssign):
            targets = outer.targets if isinstance(outer, ast.Assign) else [outer.target]
            return not any("batch" in last_name(one).lower() for one in targets)
        if isinstance(outer, ast.stmt):
            return True
    return True


def _range_of_devices(program: Program, module: Module, node: ast.Call) -> Iterator[Finding]:
    """Find a loop over a bare number of devices that ``tf.device`` counts by."""
    if program.name_of(module, node.func) != "range" or len(node.args) != 1:
        return
    end = node.args[0]
    if not isinstance(end, ast.Constant) or not _is_count(end.value):
        return
    for named in named_devices(program):
        if named.call.name != "tf.device" or "gpu" not in ast.unparse(named.node).lower():
            continue
        counted = [one for one in ast.walk(named.node) if isinstance(one, ast.Name)]
        if any(
            value.node is node for one in counted for value in program.origins(named.module, one)
        ):
            yield RULE.finding(
                module.place(node),
                f"the loop goes over {end.value} GPUs, however many there are.",
                why="On a machine with more GPUs the others idle; with fewer, TensorFlow puts the "
                "rest on another device without a word.",
                fix="for i in range(len(tf.config.list_logical_devices('GPU'))), or a strategy.",
                evidence=(module.place(node).text, named.place.text),
            )
            return


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= 64


def _is_number(node: ast.AST, wanted: int) -> bool:
    return isinstance(node, ast.Constant) and node.value == wanted and wanted >= 2


RULE = Rule(
    code="DOC-108",
    family=Family.DEVICES,
    title="number of devices written into the program",
    severity=Severity.WARNING,
    look=_look,
)
