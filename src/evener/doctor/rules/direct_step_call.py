"""DOC-212: the loop calls the step itself, although strategy.run exists for it."""

from __future__ import annotations

from collections.abc import Iterator

from evener.analysis import Program, Site
from evener.doctor.queries.branches import is_conditional
from evener.doctor.queries.steps import steps_of
from evener.doctor.queries.strategies import has_one_replica, spreads, strategies
from evener.doctor.rule import Case, Violation


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    if not spreads(program) or has_one_replica(program):
        return
    for function, module in steps_of(program).in_training.items():
        sites = program.call_sites(function)
        run = next((site for site in sites if site.way == "run"), None)
        if run is None or function not in steps_of(program).functions:
            continue
        name = getattr(function, "name", "the step")
        for site in sites:
            if not _is_direct(program, site) or _is_before_strategies(program, site):
                continue
            location = site.module.location(site.call)
            yield Violation(
                location,
                f"the loop calls {name} itself, and not by strategy.run.",
                why="Outside of strategy.run a step runs once, in the cross-replica context. With "
                "a distributed batch it raises a ValueError; with a plain batch it stops at "
                "apply_gradients, or one device computes it all.",
                fix=f"strategy.run({name}, args=(batch,)) for each batch, or the function that "
                f"does so (line {run.call.lineno}).",
                evidence=(
                    location.text,
                    run.module.location(run.call).text,
                    module.location(function).text,
                ),
            )


def _is_direct(program: Program, site: Site) -> bool:
    """Return whether a call is one of a loop over batches, outside of the replicas."""
    if site.way != "call" or is_conditional(program, site.module, site.call):
        return False
    if program.context.in_replica(site.module, site.call) is not False:
        return False
    return program.context.in_loop_over_batches(site.module, site.call) is True


def _is_before_strategies(program: Program, site: Site) -> bool:
    """Return whether a call runs when no strategy is made yet, to compare with one device."""
    made = strategies(program)
    return bool(made) and all(
        program.order.is_before(site.call, strategy.call.node) for strategy in made
    )
