"""ENG-064: a custom loss gives one number for all samples of a replica."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.questions.compiled import losses_compiled
from evener.doctor.questions.losses import Scaling, terms_of
from evener.doctor.questions.strategies import has_one_replica, is_only_evener
from evener.doctor.questions.texts import shown
from evener.doctor.rule import Case, Family, Rule


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    for loss in () if has_one_replica(program) else losses_compiled(program):
        if not loss.in_strategy:
            continue
        for module, maker, returned in loss.scalar_lines:
            terms = terms_of(program, module, returned)
            if any(one.by is not Scaling.OTHER for term in terms for one in term.scaled):
                continue
            # Where it is returned, unless one line before that makes it.
            node = maker if isinstance(returned, ast.Name) else returned
            yield RULE.finding(
                module.place(node),
                f"the loss {loss.name} gives one number for all samples: {shown(maker)}.",
                why="Under a strategy every replica has such a number, and the gradients are "
                "added up. Keras divides by the number of replicas only where it takes the mean "
                "itself, so that steps are as many times too long as there are replicas.",
                fix="return one number for each sample, such as "
                f"{_per_sample(maker)}; Keras takes the mean.",
                evidence=(module.place(node).text, loss.place.text),
                severity=Severity.WARNING if is_only_evener(program) else None,
            )


def _per_sample(maker: ast.AST) -> str:
    if isinstance(maker, ast.Call) and maker.args:
        function = ast.unparse(maker.func)
        if function.endswith(("mean", "sum")):
            return f"{function}({shown(maker.args[0])}, axis=-1)"
        return "the loss with reduction='none'"
    return "tf.reduce_mean(..., axis=-1)"


RULE = Rule(
    code="ENG-064",
    family=Family.NUMBERS,
    title="a custom loss gives one number for all samples",
    severity=Severity.ERROR,
    look=_look,
)
