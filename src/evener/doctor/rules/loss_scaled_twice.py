"""DOC-304: a loss is divided by the replicas or the global batch more than once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import FUNCTIONS, Call, Kind, Module, Program, returns_of
from evener.doctor.questions.compiled import losses_compiled
from evener.doctor.questions.gradients import gradients_of
from evener.doctor.questions.losses import Scaling, Term, terms_of
from evener.doctor.questions.reductions import Reduction
from evener.doctor.questions.strategies import spreads
from evener.doctor.questions.texts import shown
from evener.doctor.rule import Case, Family, Rule


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    if not spreads(program):
        return
    for gradient in gradients_of(program):
        if gradient.in_replicas:
            for term in terms_of(program, gradient.call.module, gradient.loss):
                yield from _scaled_twice(term)
    yield from _means_of_scaled(program)
    yield from _compiled(program)


def _scaled_twice(term: Term) -> Iterator[Finding]:
    scaled = [one for one in term.scaled if one.by is not Scaling.OTHER]
    if not scaled:
        return
    ways = [one.by.value for one in reversed(scaled)]
    if term.reduction is Reduction.KERAS:
        ways.insert(0, "the number of replicas, by Keras")
    elif term.reduction is Reduction.MEAN and scaled[-1].by is not Scaling.REPLICAS:
        ways.insert(0, "the samples of the replica, by the mean")
    elif term.reduction is Reduction.ADDED:
        return
    # A sum that is divided by the size of a replica's batch, and then by the replicas, is right.
    if len(ways) < 2:
        return
    outer = scaled[0]
    yield RULE.finding(
        outer.module.place(outer.node),
        f"the loss {shown(term.node)} is divided twice: by {' and by '.join(ways)}.",
        why="The gradients of all replicas are added up, so one division is right. With two the "
        "steps are too short by the number of replicas or the batch size.",
        fix="leave out this division."
        if term.reduction is not Reduction.KERAS
        else "leave it out; or make the loss with reduction='none' and divide once, by "
        "tf.nn.compute_average_loss(per_example_loss, global_batch_size=GLOBAL_BATCH_SIZE).",
        evidence=(outer.module.place(outer.node).text, term.module.place(term.node).text),
    )


def _means_of_scaled(program: Program) -> Iterator[Finding]:
    """Find the mean over replicas of what each of them has scaled already."""
    for call in program.method_calls(Kind.STRATEGY, "reduce"):
        operation, value = call.argument(0, "reduce_op"), call.argument(1, "value")
        if operation is None or value is None or not _is_mean(program, call.module, operation):
            continue
        for where, returned in _returned_to(program, call.module, value):
            scaled = [term for term in terms_of(program, where, returned) if _is_scaled(term)]
            if scaled:
                yield _mean_finding(call, value, where, scaled[0])
                break


def _is_scaled(term: Term) -> bool:
    return term.reduction is Reduction.KERAS or any(
        one.by in (Scaling.REPLICAS, Scaling.AVERAGE, Scaling.GLOBAL_BATCH) for one in term.scaled
    )


def _is_mean(program: Program, module: Module, node: ast.expr) -> bool:
    named = program.constant(module, node)
    return str(named).upper() == "MEAN" or program.name_of(module, node).endswith("ReduceOp.MEAN")


def _returned_to(
    program: Program, module: Module, value: ast.expr
) -> Iterator[tuple[Module, ast.AST]]:
    """Yield what the function given to ``strategy.run`` returns as this value."""
    for origin in program.origins(module, value):
        made = origin.node
        if not isinstance(made, ast.Call) or not made.args:
            continue
        if Kind.PER_REPLICA not in program.kinds(origin.module, made):
            continue
        for where, function in program.functions_of(origin.module, made.args[0]):
            if not isinstance(function, FUNCTIONS):
                continue
            for returned in returns_of(function):
                if not origin.steps:
                    if not isinstance(returned, ast.Tuple | ast.Dict):
                        yield where, returned
                    continue
                for one in program.origins(where, returned, origin.steps):
                    if not one.steps:
                        yield one.module, one.node


def _mean_finding(call: Call, value: ast.expr, where: Module, term: Term) -> Finding:
    return RULE.finding(
        call.place,
        f"the mean over the replicas is taken of {shown(value)}, which each replica has "
        "scaled already.",
        why=f"{shown(term.node)} is a part of the loss of the whole batch; the parts add up to "
        "it. Their mean is smaller by the number of replicas.",
        fix=f"strategy.reduce(tf.distribute.ReduceOp.SUM, {shown(value)}, axis=None)",
        evidence=(call.place.text, where.place(term.node).text),
        severity=Severity.WARNING,
    )


def _compiled(program: Program) -> Iterator[Finding]:
    """Find losses given to ``compile`` that divide what Keras divides after them."""
    for loss in losses_compiled(program):
        if loss.function is None or not loss.in_strategy or loss.scalar_lines:
            continue
        for returned in returns_of(loss.function):
            for term in terms_of(program, loss.module, returned):
                scaled = [
                    one for one in term.scaled if one.by in (Scaling.REPLICAS, Scaling.GLOBAL_BATCH)
                ]
                if scaled and term.reduction is Reduction.EACH:
                    yield RULE.finding(
                        scaled[0].module.place(scaled[0].node),
                        f"the loss {loss.name} is divided by {scaled[0].by.value}, and Keras "
                        "divides it again.",
                        why="Keras takes the mean over the samples of a loss with one number for "
                        "each, and divides it by the number of replicas.",
                        fix="leave out this division.",
                        evidence=(scaled[0].module.place(scaled[0].node).text, loss.place.text),
                    )


RULE = Rule(
    code="DOC-304",
    family=Family.NUMBERS,
    title="the loss is scaled twice",
    severity=Severity.ERROR,
    look=_look,
)
