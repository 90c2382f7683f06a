"""DOC-311: the gradient is taken of a loss with one value for each sample."""

from __future__ import annotations

from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Program
from evener.doctor.questions.gradients import Gradient, gradients_of
from evener.doctor.questions.losses import Scaling, Term, terms_of
from evener.doctor.questions.reductions import Reduction
from evener.doctor.questions.texts import shown
from evener.doctor.rule import Case, Family, Rule

# Of what a gradient is applied; one with respect to images is no step.
_WEIGHTS = ("variable", "weight", "param")


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    for gradient in gradients_of(program):
        if not _is_applied(program, gradient):
            continue
        for term in terms_of(program, gradient.call.module, gradient.loss):
            # A division by the number of replicas is no mean over the samples.
            averaged = [one for one in term.scaled if one.by is not Scaling.REPLICAS]
            if term.reduction is Reduction.EACH and not averaged:
                yield _finding(term, gradient)


def _is_applied(program: Program, gradient: Gradient) -> bool:
    """Return whether a gradient is one of weights, and of the plain loss."""
    if gradient.sources is None or gradient.call.argument(2, "output_gradients") is not None:
        return False
    module = gradient.call.module
    texts = [shown(gradient.sources)]
    texts += [shown(one.node) for one in program.origins(module, gradient.sources)]
    return any(word in text.lower() for text in texts for word in _WEIGHTS)


def _finding(term: Term, gradient: Gradient) -> Finding:
    place, taken = term.module.place(term.node), gradient.call.place
    why = "The gradient of several values is that of their sum: it grows with the batch size."
    fix = f"loss = tf.reduce_mean({shown(term.node)})"
    if gradient.in_replicas:
        why += " The strategy then adds up the gradients of all replicas."
        fix = (
            f"loss = tf.nn.compute_average_loss({shown(term.node)}, "
            "global_batch_size=GLOBAL_BATCH_SIZE)"
        )
    return RULE.finding(
        taken,
        f"the gradient is taken of {shown(gradient.loss)}, which has one value for each sample.",
        why=why,
        fix=f"{fix}, and take the gradient of that.",
        evidence=tuple(dict.fromkeys((taken.text, place.text))),
        severity=Severity.ERROR if gradient.in_replicas else None,
    )


RULE = Rule(
    code="DOC-311",
    family=Family.NUMBERS,
    title="a loss for each sample that is never averaged",
    severity=Severity.WARNING,
    look=_look,
)
