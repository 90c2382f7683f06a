"""DOC-216: ``strategy.run`` is given a whole batch, which it does not split."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import FUNCTIONS, Call, Kind, Module, Program
from evener.doctor.queries.source_text import shown
from evener.doctor.queries.steps import steps_of
from evener.doctor.queries.strategies import (
    is_only_evener,
    runs,
    spreads,
    the_number_of_replicas,
)
from evener.doctor.rule import Case, Violation

_DISTRIBUTED = {Kind.PER_REPLICA, Kind.DISTRIBUTED}
_SPLITS = ("tf.split", "np.split", "np.array_split", "np.vsplit")
# Calls that give many samples, not one number.
_ARRAYS = (*_SPLITS, "np.load", "np.stack", "np.concatenate", "np.zeros", "np.ones", "np.array")
_FAMILIES = ("np.random.", "keras.datasets.", "tf.random.", "keras.random.", "sklearn.")
# Names by which a replica takes its own part.
_OWN_PART = ("replica_id_in_sync_group", "experimental_distribute_values_from_function")
_SAME_ROWS = ("astype", "reshape", "swapaxes", "transpose", "standard_normal", "normal", "random")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if not spreads(program) or is_only_evener(program) or the_number_of_replicas(case) == 1:
        return
    if any(node.attr in _OWN_PART for _, node in program.nodes(ast.Attribute)):
        return
    for call in runs(program):
        given = _given(call)
        batch = next((each for each in given if _is_batch(program, call.module, each)), None)
        if batch is None or not _takes_step(program, call):
            continue
        if any(program.kinds(call.module, each) & _DISTRIBUTED for each in given):
            continue
        yield _violation(program, call, batch)


def _violation(program: Program, call: Call, batch: ast.expr) -> Violation:
    what = shown(batch)
    is_shard = any(
        program.name_of(value.module, value.node.func) in _SPLITS
        for value in program.origins(call.module, batch)
        if isinstance(value.node, ast.Call)
    )
    thing = "shard" if is_shard else "batch"
    return Violation(
        call.location,
        f"strategy.run gives the whole {thing} {what} to every replica: it splits nothing.",
        why=f"All devices compute the same {thing}: at the speed of one, and gradients that are "
        "added up over the replicas count each sample once per device."
        + (" A loop over shards makes one update for each of them." if is_shard else ""),
        fix="distribute the dataset, and give its elements to run:\n"
        "for batch in strategy.experimental_distribute_dataset(dataset):\n"
        "    strategy.run(step, args=(batch,))",
    )


def _given(call: Call) -> list[ast.expr]:
    args = call.argument(1, "args")
    if isinstance(args, ast.Tuple | ast.List):
        return [each.value if isinstance(each, ast.Starred) else each for each in args.elts]
    return [] if args is None else [args]


def _takes_step(program: Program, call: Call) -> bool:
    function = call.argument(0, "fn")
    if function is None:
        return False
    steps = steps_of(program).functions
    return any(target in steps for _, target in program.functions_of(call.module, function))


def _is_batch(program: Program, module: Module, node: ast.expr) -> bool:
    """Return whether an expression is samples that no strategy has distributed."""
    kinds = program.kinds(module, node)
    if kinds & _DISTRIBUTED:
        return False
    if Kind.BATCH in kinds:
        return True
    return bool(kinds & {Kind.ARRAY, Kind.TENSOR}) and any(
        _gives_samples(program, value.module, value.node) for value in program.origins(module, node)
    )


def _gives_samples(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether a call gives an array of many samples; methods keep its rows."""
    if not isinstance(node, ast.Call):
        return False
    name = program.name_of(module, node.func)
    if name in _ARRAYS or name.startswith(_FAMILIES):
        return True
    if isinstance(node.func, ast.Attribute) and node.func.attr in _SAME_ROWS:
        return any(
            _gives_samples(program, value.module, value.node)
            for value in program.origins(module, node.func.value)
            if not isinstance(value.node, FUNCTIONS) and value.node is not node
        )
    return False
