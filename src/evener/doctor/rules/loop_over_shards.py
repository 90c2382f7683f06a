"""RUN-007: a loop over the shards of a batch around ``strategy.run``."""

from __future__ import annotations

from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Kind
from evener.doctor.questions.shards import is_over_devices
from evener.doctor.questions.strategies import has_one_replica
from evener.doctor.rule import Case, Family, Rule


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    if has_one_replica(program):
        return
    for call in program.method_calls(Kind.STRATEGY, "run"):
        for loop in program.around.loops(call.module, call.node):
            iterated = getattr(loop, "iter", None)
            if iterated is not None and is_over_devices(iterated, call.module.tree):
                yield RULE.finding(
                    call.place,
                    "strategy.run is called once for each shard of a batch.",
                    why="run is one step on all devices: every replica computes all of each "
                    "shard, and one batch becomes several updates on a part of it each.",
                    fix="leave out the loop and the splitting, and call run once for each batch "
                    "of strategy.experimental_distribute_dataset(dataset).",
                    evidence=(call.module.place(loop).text, call.place.text),
                )
                break


RULE = Rule(
    code="RUN-007",
    family=Family.DISTRIBUTION,
    title="loop over shards around strategy.run",
    severity=Severity.ERROR,
    look=_look,
)
