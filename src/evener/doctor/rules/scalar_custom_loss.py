"""ENG-064: a custom loss returns one number for all samples of a replica."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Severity
from evener.doctor.queries.compiled_losses import losses_compiled
from evener.doctor.queries.losses import Divisor, scalar_returns
from evener.doctor.queries.source_text import shown
from evener.doctor.queries.strategies import has_one_replica, is_only_evener
from evener.doctor.rule import Case, Violation


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if has_one_replica(program):
        return
    for loss in losses_compiled(program):
        if not loss.in_strategy:
            continue
        for term, returned in scalar_returns(program, loss.module, loss.function):
            if set(term.divisors) & {Divisor.REPLICAS, Divisor.GLOBAL_BATCH}:
                continue
            # The line of the return, unless a line before it reduces the loss.
            location = term.module.location(
                term.node if isinstance(returned, ast.Name) else returned
            )
            yield Violation(
                location,
                f"the loss {loss.name} returns one number for all samples: {shown(term.node)}.",
                why="Under a strategy each replica computes such a number, and the gradients are "
                "added up. Keras divides by the number of replicas only what it averages itself: "
                "the gradient is multiplied by the number of replicas.",
                fix=f"return one number per sample, such as {_per_sample(term.node)}; Keras takes "
                "the mean.",
                evidence=(location.text, loss.call.location.text),
                severity=Severity.WARNING if is_only_evener(program) else None,
            )


def _per_sample(node: ast.AST) -> str:
    if isinstance(node, ast.Call) and node.args:
        function = ast.unparse(node.func)
        if function.endswith(("mean", "sum")):
            return f"{function}({shown(node.args[0])}, axis=-1)"
        return "the loss with reduction='none'"
    return "tf.reduce_mean(..., axis=-1)"
