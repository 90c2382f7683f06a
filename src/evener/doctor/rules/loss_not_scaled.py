"""DOC-214: the loss of a replica is not scaled to the global batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Module, Program
from evener.doctor.queries.gradients import Gradient, gradients_of
from evener.doctor.queries.losses import Reduction, Term, terms_of
from evener.doctor.queries.numbers import number
from evener.doctor.queries.source_text import shown
from evener.doctor.queries.strategies import is_only_evener, spreads
from evener.doctor.rule import Case, Violation

_MEANS = ("mean", "reduce_mean")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if not spreads(program) or is_only_evener(program):
        return
    for gradient in gradients_of(program):
        call = gradient.call
        if not gradient.in_replicas or _scales(program, call.module, call.node):
            continue
        for term in terms_of(program, call.module, gradient.loss):
            if _is_unscaled(program, term):
                yield _violation(term, gradient)


def _is_unscaled(program: Program, term: Term) -> bool:
    """Return whether a term is a mean over the samples of one replica, divided by nothing."""
    node = term.node
    if term.reduction is not Reduction.SCALAR or term.divisors or not isinstance(node, ast.Call):
        return False
    if program.callee(term.module, node).rpartition(".")[2] not in _MEANS or not node.args:
        return False
    # A loss of Keras, scaled by the number of replicas already, is one number for all samples.
    inner = terms_of(program, term.module, node.args[0])
    is_scaled = any(loss.divisors or loss.reduction is Reduction.SCALAR for loss in inner)
    return not is_scaled and not _scales(program, term.module, node)


def _scales(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether the function around a node scales anything by the number of replicas."""
    function = program.context.function(module, node)
    for part in ast.walk(function) if function is not None else ():
        if isinstance(part, ast.Attribute) and part.attr == "all_reduce":
            return True
        parts: tuple[ast.expr, ...] = ()
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult | ast.Div):
            parts = (part.left, part.right)
        elif isinstance(part, ast.AugAssign) and isinstance(part.op, ast.Mult | ast.Div):
            parts = (part.value,)
        if any(_is_scale(program, module, factor) for factor in parts):
            return True
    return False


def _is_scale(program: Program, module: Module, node: ast.expr) -> bool:
    """Return whether a factor or divisor has the number of replicas in it, also by its name."""
    value = number(program, module, node)
    text = ast.unparse(node).lower()
    return (value is not None and value.power != 0) or "replica" in text or "global" in text


def _violation(term: Term, gradient: Gradient) -> Violation:
    location = term.module.location(term.node)
    assert isinstance(term.node, ast.Call)
    return Violation(
        location,
        f"the loss {shown(term.node)} is the mean over the samples of one replica, not scaled.",
        why="The strategy adds up the gradients of all replicas: the gradient is multiplied by "
        "the number of replicas.",
        fix=f"tf.nn.compute_average_loss({shown(term.node.args[0])}, "
        "global_batch_size=GLOBAL_BATCH_SIZE), with one number per sample; or divide the mean by "
        "strategy.num_replicas_in_sync.",
        evidence=tuple(dict.fromkeys((location.text, gradient.call.location.text))),
    )
