"""DOC-204: batches of a dataset that was not distributed are given to ``strategy.run``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Kind, Place, Program
from evener.doctor.questions.run_arguments import Given, given_to_run, is_per_replica
from evener.doctor.rule import Case, Family, Rule


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    lines = set[tuple[str, int]]()
    for given in given_to_run(program):
        if is_per_replica(program, given):
            continue
        if Kind.BATCH not in program.kinds(given.module, given.node):
            continue
        place = given.call.place
        if (place.path, place.line) in lines:
            continue
        lines.add((place.path, place.line))
        yield _finding(program, given, place)


def _finding(program: Program, given: Given, place: Place) -> Finding:
    name = ast.unparse(given.node)
    origin = _dataset_of(program, given)
    return RULE.finding(
        place,
        f"{name} is a batch of a dataset that was not distributed.",
        why="strategy.run splits nothing: every replica is given the whole batch and computes "
        "all of it, so that several devices do the work of one, each.",
        fix="dataset = strategy.experimental_distribute_dataset(dataset), and loop over that: "
        "each replica then gets its part.",
        evidence=(place.text, *([f"line {origin.line}: {origin.text}"] if origin else [])),
    )


def _dataset_of(program: Program, given: Given) -> Place | None:
    for value in program.origins(given.module, given.node):
        if isinstance(value.node, ast.Call):
            return value.module.place(value.node)
    return None


RULE = Rule(
    code="DOC-204",
    family=Family.DISTRIBUTION,
    title="batches of a dataset that was not distributed",
    severity=Severity.WARNING,
    look=_look,
)
