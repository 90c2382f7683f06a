"""RUN-006: a custom loop trains, there is a strategy, and run is never called."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import FUNCTIONS, Kind, Program
from evener.doctor.queries.strategies import runs, scopes, strategies
from evener.doctor.queries.training import Update, updates
from evener.doctor.rule import Case, Violation

_ONE = ("OneDeviceStrategy",)
# Under these a coordinator, or a thread for each replica, takes the steps.
_OTHER_WAYS = ("schedule", "call_for_each_replica", "merge_call")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    made = [strategy for strategy in strategies(program) if strategy.name not in _ONE]
    if made and scopes(program) and not runs(program) and not _has_other_way(case):
        lines = set[int]()
        for update in updates(program):
            if _is_distributed(program, update):
                continue
            location = update.module.location(update.step)
            if location.line in lines:
                continue
            lines.add(location.line)
            yield Violation(
                location,
                f"the loop trains under {made[0].name}, but strategy.run is never called.",
                why="The scope makes the variables for all devices; work is spread by "
                "strategy.run alone. As it is, training stops: RuntimeError: Need to be inside "
                '"with strategy.scope()", or AttributeError: merge_call; or one device does it '
                "all.",
                fix="per_replica = strategy.run(step, args=(batch,)) for each batch of "
                "strategy.experimental_distribute_dataset(dataset), then "
                "strategy.reduce(...) for the loss.",
                evidence=(
                    location.text,
                    update.call.location.text,
                    made[0].call.location.text,
                ),
            )


def _is_distributed(program: Program, update: Update) -> bool:
    """Return whether an update is in a function that `evener.distribute` spreads."""
    module = update.call.module
    return any(
        isinstance(outer, FUNCTIONS)
        and program.context.is_decorated(module, outer, "evener.distribute")
        for outer in module.around(update.call.node)
    )


def _has_other_way(case: Case) -> bool:
    """Return whether steps are taken by something else, or by ``run`` under another name."""
    program = case.program
    for module, node in program.nodes(ast.Attribute):
        if node.attr in _OTHER_WAYS:
            return True
        if node.attr == "run" and Kind.STRATEGY in program.kinds(module, node.value):
            return True
    return False
