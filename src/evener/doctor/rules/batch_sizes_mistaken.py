"""DOC-206: the size of the global batch and that of a replica's are mistaken for each other."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Call, Module, Program, argument
from evener.doctor.questions.batch_sizes import BatchSize, batch_sizes
from evener.doctor.questions.numbers import (
    Number,
    is_said_global,
    is_said_per_replica,
    names_in,
    number,
)
from evener.doctor.questions.strategies import strategies
from evener.doctor.rule import Case, Family, Rule

_ONE = ("OneDeviceStrategy",)
_SUMS = ("tf.reduce_sum", "tf.math.reduce_sum")


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    made = strategies(program)
    if made and all(one.name in _ONE for one in made):
        return
    sizes = batch_sizes(program)
    for size in sizes:
        if size.is_per_replica:
            yield from _global_for_each(program, size)
        else:
            yield from _own_for_all(program, size)
    yield from _divisors(program, sizes)


def _own_for_all(program: Program, size: BatchSize) -> Iterator[Finding]:
    """Find the size for one replica where the size for all of them is wanted."""
    if size.size is not None and size.size.power > 0:
        return
    ways = [(size.module, size.node or size.call), *_given_as(program, size)]
    if any(isinstance(one, ast.Mult) for _, node in ways for one in ast.walk(node)):
        return
    said = [
        (name, module.place(node))
        for module, node in ways
        for name in names_in(program, module, node)
        if is_said_per_replica(name)
    ]
    if not said:
        return
    name, place = said[0]
    yield RULE.finding(
        place,
        f"{name} is the size for one replica, given where the size of the whole batch is wanted.",
        why=("fit" if size.is_fit else "experimental_distribute_dataset")
        + " splits the batch among the replicas: each gets a part of this, and the devices work "
        "on less than was meant.",
        fix=f"write {name} * strategy.num_replicas_in_sync.",
        evidence=tuple(dict.fromkeys((place.text, size.use.place.text))),
    )


def _given_as(program: Program, size: BatchSize) -> Iterator[tuple[Module, ast.expr]]:
    """Yield what is given as the size by who calls the function that makes the batches."""
    if not isinstance(size.node, ast.Name):
        return
    for _, binding in program.bindings(size.module, size.node):
        for site in program.call_sites(binding.parameter_of) if binding.parameter_of else ():
            for given, steps in site.given_to(binding.name):
                if not steps:
                    yield site.module, given


def _global_for_each(program: Program, size: BatchSize) -> Iterator[Finding]:
    """Find the size for all replicas where the dataset is for each of them."""
    name = _said(program, size, is_said_global)
    scaled = size.size is not None and size.size.power > 0
    divides = any(_number_of_loss(program, call, size) for call in _averages(program))
    if (name is None and not scaled and not divides) or _is_divided(size):
        return
    if size.size is not None and size.size.power < 0:
        return
    place = size.module.place(size.node or size.call)
    written = ast.unparse(size.node) if size.node is not None else "the batch size"
    yield RULE.finding(
        place,
        f"{written} is the size of the whole batch, and each replica gets batches of that size.",
        why="distribute_datasets_from_function splits nothing: every replica takes its own "
        "batches from this dataset, so that a step sees as many samples more as there are "
        "replicas.",
        fix=f"batch by context.get_per_replica_batch_size({written}).",
        evidence=tuple(dict.fromkeys((place.text, size.use.place.text))),
    )


def _number_of_loss(program: Program, call: Call, size: BatchSize) -> bool:
    """Return whether the loss is averaged over the very size that each replica has."""
    given = call.argument(None, "global_batch_size")
    divisor = number(program, call.module, given)
    return divisor is not None and divisor == size.size


def _divisors(program: Program, sizes: list[BatchSize]) -> Iterator[Finding]:
    """Find losses that are averaged over another size than the whole batch has."""
    whole = _whole_batch(sizes)
    for module, node, divisor in _losses(program):
        names = names_in(program, module, divisor)
        size = number(program, module, divisor)
        said = next((one for one in names if is_said_per_replica(one)), None)
        has_power = size is not None and size.power > 0
        differs = whole is not None and size is not None and _differs(whole, size)
        if not differs and (said is None or has_power):
            continue
        place = module.place(node)
        written = ast.unparse(divisor)
        yield RULE.finding(
            place,
            f"the loss is averaged over {written}, which is not the size of the whole batch.",
            why="Each replica's losses are divided by it, and the gradients of the replicas are "
            "added up: they come out scaled by the number of replicas.",
            fix="divide by the size of the whole batch: global_batch_size="
            + (f"{written} * strategy.num_replicas_in_sync." if not has_power else "as batched."),
            evidence=tuple(dict.fromkeys((place.text, *(one.place.text for one in sizes[:1])))),
            severity=Severity.ERROR,
        )


def _whole_batch(sizes: list[BatchSize]) -> Number | None:
    """Return the one size of the whole batches that a loop trains on, if it can be told."""
    known = {one.size for one in sizes if not one.is_fit and not one.is_per_replica}
    if any(one.is_per_replica for one in sizes) or len(known) != 1:
        return None
    return known.pop()


def _differs(whole: Number, size: Number) -> bool:
    """Return whether two sizes differ by the number of replicas, and by nothing else."""
    return whole.power != size.power and whole.value == size.value


def _losses(program: Program) -> Iterator[tuple[Module, ast.AST, ast.expr]]:
    """Yield where losses are averaged, and over what."""
    for call in _averages(program):
        given = argument(call.node, None, "global_batch_size")
        if given is not None:
            yield call.module, call.node, given
    for module, node in program.nodes(ast.BinOp):
        assert isinstance(node, ast.BinOp)
        if not isinstance(node.op, ast.Div) or not program.around.in_replica(module, node):
            continue
        if _is_sum(program, module, node.left):
            yield module, node, node.right


def _is_sum(program: Program, module: Module, node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_sum(program, module, node.left) or _is_sum(program, module, node.right)
    return any(
        isinstance(value.node, ast.Call) and program.name_of(value.module, value.node.func) in _SUMS
        for value in program.origins(module, node)
    )


def _averages(program: Program) -> Iterator[Call]:
    yield from program.calls("tf.nn.compute_average_loss")


def _said(program: Program, size: BatchSize, says: Callable[[str], bool]) -> str | None:
    return next((one for one in names_in(program, size.module, size.node) if says(one)), None)


def _is_divided(size: BatchSize) -> bool:
    """Return whether what is given was made smaller on the spot."""
    return any(
        isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div | ast.FloorDiv)
        for one in ast.walk(size.node or size.call)
    )


RULE = Rule(
    code="DOC-206",
    family=Family.DISTRIBUTION,
    title="global batch and per-replica batch mistaken for each other",
    severity=Severity.WARNING,
    look=_look,
)
