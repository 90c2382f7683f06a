"""ENG-066: the loss of a replica is not scaled by the number of replicas."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Program
from evener.doctor.questions.gradients import Gradient, gradients_of
from evener.doctor.questions.losses import Scaling, Term, terms_of
from evener.doctor.questions.numbers import counts_replicas
from evener.doctor.questions.reductions import Reduction
from evener.doctor.questions.strategies import has_one_replica, is_only_evener, spreads
from evener.doctor.questions.texts import shown
from evener.doctor.rule import Case, Family, Rule


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    if not spreads(program) or has_one_replica(program):
        return
    for gradient in gradients_of(program):
        if not gradient.in_replicas or _averages_gradients(program, gradient):
            continue
        for term in terms_of(program, gradient.call.module, gradient.loss):
            if _is_unscaled(term):
                yield _finding(program, term, gradient)


def _is_unscaled(term: Term) -> bool:
    if term.reduction not in (Reduction.MEAN, Reduction.ADDED):
        return False
    # A divisor that is not known may be the number of replicas; a constant is not.
    return all(one.by is Scaling.OTHER and _divides_by_constant(one.node) for one in term.scaled)


def _divides_by_constant(node: ast.AST) -> bool:
    divisor = getattr(node, "right", None) or getattr(node, "value", None)
    return isinstance(divisor, ast.Constant)


def _averages_gradients(program: Program, gradient: Gradient) -> bool:
    """Return whether the gradients themselves are divided, or averaged by hand."""
    module = gradient.call.module
    function = program.around.function(module, gradient.call.node)
    if function is None:
        return False
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "all_reduce" and "mean" in ast.unparse(node).lower():
                return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mult):
            left = ast.unparse(node.left).lower()
            is_gradient = "grad" in left or left in ("g", "dw", "dv")
            if is_gradient and counts_replicas(program, module, node.right):
                return True
    return False


def _finding(program: Program, term: Term, gradient: Gradient) -> Finding:
    place = term.module.place(term.node)
    evidence = (place.text, gradient.call.place.text)
    severity = Severity.WARNING if is_only_evener(program) else None
    if term.reduction is Reduction.ADDED:
        return RULE.finding(
            place,
            f"{shown(term.node)} is added to the loss of every replica and not scaled.",
            why="The gradients of all replicas are added up, so that the losses of layers count "
            "once for each replica: regularization is as many times too strong.",
            fix=f"add tf.nn.scale_regularization_loss(tf.add_n({shown(term.node)})), which "
            "divides by the number of replicas.",
            evidence=evidence,
            severity=severity,
        )
    inner = shown(term.node.args[0]) if isinstance(term.node, ast.Call) and term.node.args else ""
    return RULE.finding(
        place,
        f"{shown(term.node)} is the mean over the samples of one replica, and is not scaled.",
        why="The gradients of all replicas are added up: with two replicas a step is twice as "
        "long as on one device, with eight it is eight times as long.",
        fix=f"tf.nn.compute_average_loss({inner or 'per_example_loss'}, "
        "global_batch_size=GLOBAL_BATCH_SIZE), with one number for each sample; or divide by "
        "strategy.num_replicas_in_sync.",
        evidence=evidence,
        severity=severity,
    )


RULE = Rule(
    code="ENG-066",
    family=Family.NUMBERS,
    title="the loss of a replica is not scaled",
    severity=Severity.ERROR,
    look=_look,
)
