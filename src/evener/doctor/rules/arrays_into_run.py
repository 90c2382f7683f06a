"""ENG-060: plain arrays or tensors are given to ``strategy.run``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.questions.raised import warned_places
from evener.doctor.questions.run_arguments import given_to_run, samples_in
from evener.doctor.questions.strategies import has_one_replica
from evener.doctor.questions.trainings import updates
from evener.doctor.rule import Case, Family, Rule

_WHY = (
    "strategy.run splits nothing: every replica is given the whole array, and computes all of "
    "it. The result is right, or scaled by the number of replicas, at the speed of one device."
)
_FIX = (
    "make a tf.data.Dataset of it, and give run the batches of "
    "strategy.experimental_distribute_dataset(dataset)."
)


def _look(case: Case) -> Iterator[Finding]:
    lines = set[int]()
    severity = None if updates(case.program) else Severity.HINT
    for given in () if has_one_replica(case.program) else given_to_run(case.program):
        made = samples_in(case.program, given)
        if made is None:
            continue
        place = given.call.place
        lines.add(place.line)
        origin = made.module.place(made.node)
        yield RULE.finding(
            place,
            f"{ast.unparse(given.node)} is a plain array or tensor, given whole to strategy.run.",
            why=_WHY,
            fix=_FIX,
            evidence=tuple(dict.fromkeys((place.text, f"line {origin.line}: {origin.text}"))),
            severity=severity,
        )
    for place in warned_places(case, RULE.code):
        if place.line not in lines:
            yield RULE.finding(
                place, "whole arrays were given to strategy.run.", why=_WHY, fix=_FIX
            )


RULE = Rule(
    code="ENG-060",
    family=Family.DISTRIBUTION,
    title="plain arrays given to strategy.run",
    severity=Severity.WARNING,
    look=_look,
)
