"""DOC-311: the gradient is taken of a loss with one value for each sample."""

from __future__ import annotations

from collections.abc import Iterator

from evener.analysis import Program
from evener.doctor.finding import Severity
from evener.doctor.queries.gradients import Gradient, gradients_of
from evener.doctor.queries.losses import Divisor, Reduction, Term, terms_of
from evener.doctor.queries.source_text import shown
from evener.doctor.rule import Case, Violation

# Of what a gradient is applied; one with respect to images is no step.
_WEIGHTS = ("variable", "weight", "param")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    for gradient in gradients_of(program):
        if not _is_applied(program, gradient):
            continue
        for term in terms_of(program, gradient.call.module, gradient.loss):
            # A division by the number of replicas is no mean over the samples.
            is_averaged = any(divisor is not Divisor.REPLICAS for divisor in term.divisors)
            if term.reduction is Reduction.EACH and not is_averaged:
                yield _violation(term, gradient)


def _is_applied(program: Program, gradient: Gradient) -> bool:
    """Return whether a gradient is one of weights, and of the plain loss."""
    if gradient.sources is None or gradient.call.argument(2, "output_gradients") is not None:
        return False
    module = gradient.call.module
    texts = [shown(gradient.sources)]
    texts += [shown(origin.node) for origin in program.origins(module, gradient.sources)]
    return any(word in text.lower() for text in texts for word in _WEIGHTS)


def _violation(term: Term, gradient: Gradient) -> Violation:
    location, taken = term.module.location(term.node), gradient.call.location
    why = "The gradient of several values is that of their sum: it grows with the batch size."
    fix = f"loss = tf.reduce_mean({shown(term.node)})"
    if gradient.in_replicas:
        why += " The strategy then adds up the gradients of all replicas."
        fix = (
            f"loss = tf.nn.compute_average_loss({shown(term.node)}, "
            "global_batch_size=GLOBAL_BATCH_SIZE)"
        )
    return Violation(
        taken,
        f"the gradient is taken of {shown(gradient.loss)}, which has one value for each sample.",
        why=why,
        fix=f"{fix}, and take the gradient of that.",
        evidence=tuple(dict.fromkeys((taken.text, location.text))),
        severity=Severity.ERROR if gradient.in_replicas else None,
    )
