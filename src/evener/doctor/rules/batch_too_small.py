"""DOC-205: the batch does not divide by the devices, or is small for them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Location, Program
from evener.doctor.finding import Severity
from evener.doctor.queries.batch_sizes import BatchSize, batch_sizes
from evener.doctor.queries.source_text import observed_location
from evener.doctor.queries.strategies import strategies, the_number_of_replicas
from evener.doctor.queries.training import is_beside_strategy
from evener.doctor.rule import Case, Violation

# With fewer samples a device waits for the launch of its kernels more than it computes.
_FEW = 4
_FIRST_STEP = (
    "Keras's first step under the strategy stops: InvalidArgumentError: Inputs to operation AddN "
    "must have the same size and shape."
)


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    made = strategies(program)
    num_replicas = the_number_of_replicas(case)
    if made and num_replicas is not None and num_replicas > 1:
        if not all(strategy.is_evener for strategy in made):
            for size in batch_sizes(program):
                if not (size.is_fit and is_beside_strategy(program, size.use)):
                    yield from _check_size(program, size, num_replicas)
    yield from _measured(case)


def _check_size(program: Program, size: BatchSize, num_replicas: int) -> Iterator[Violation]:
    batch = None if size.size is None else size.size.whole_at(num_replicas)
    if batch is None:
        return
    location = _written(program, size)
    if batch < num_replicas:
        yield _without_samples(location, size, batch, num_replicas)
    elif batch % num_replicas:
        yield _uneven(location, size, batch, num_replicas)
    elif batch // num_replicas <= _FEW:
        yield Violation(
            location,
            f"a batch of {batch} is small for {num_replicas} devices: "
            f"{batch // num_replicas} samples each.",
            why="A device then waits for the start of its kernels and for the sum of the "
            "gradients more than it computes, so that several are slower than one; and batch "
            "normalization sees these few samples alone.",
            fix="multiply the batch by strategy.num_replicas_in_sync (and raise the learning "
            f"rate), for example {32 * num_replicas}.",
            evidence=(location.text, size.use.location.text, f"{num_replicas} devices"),
        )


def _without_samples(
    location: Location, size: BatchSize, batch: int, num_replicas: int
) -> Violation:
    idle = num_replicas - batch
    why = (
        "A device without samples idles. The mean loss of its replica is NaN, and with it each sum "
        "over the replicas."
    )
    return Violation(
        location,
        f"a batch of {batch} has fewer samples than there are devices: {idle} of {num_replicas} "
        f"devices {'gets' if idle == 1 else 'get'} none.",
        why=_FIRST_STEP if size.is_fit else why,
        fix=f"give at least {num_replicas} samples, best many per device: a size per device times "
        "strategy.num_replicas_in_sync.",
        evidence=tuple(
            dict.fromkeys((location.text, size.use.location.text, f"{num_replicas} devices"))
        ),
        severity=Severity.ERROR,
    )


def _uneven(location: Location, size: BatchSize, batch: int, num_replicas: int) -> Violation:
    parts = f"{-(-batch // num_replicas)} and {batch // num_replicas}"
    if size.is_fit:
        why = _FIRST_STEP
    else:
        why = (
            f"The replicas get {parts} samples, so that a mean over each counts their samples "
            "differently, and the fastest waits for the others."
        )
    lower = batch - batch % num_replicas or num_replicas
    return Violation(
        location,
        f"a batch of {batch} does not divide by {num_replicas} devices.",
        why=why,
        fix=f"write {lower} or {lower + num_replicas}, best a size per device times "
        "strategy.num_replicas_in_sync; or use evener.Strategy(), which splits any batch "
        "exactly.",
        evidence=tuple(
            dict.fromkeys((location.text, size.use.location.text, f"{num_replicas} devices"))
        ),
        severity=Severity.ERROR if size.is_fit else None,
    )


def _written(program: Program, size: BatchSize) -> Location:
    """Return the line on which the number is written, which is the one to change."""
    if size.node is None:
        return size.use.location
    if isinstance(size.node, ast.Name | ast.Attribute | ast.Subscript):
        values = program.origins(size.module, size.node)
        if len(values) == 1 and isinstance(values[0].node, ast.Constant):
            return values[0].module.location(values[0].node)
    return size.location


def _measured(case: Case) -> Iterator[Violation]:
    steps = None if case.observation is None else case.observation.steps
    if steps is None or steps.where is None or steps.num_replicas < 2 or not steps.batch_size:
        return
    batch, num_replicas = steps.batch_size, steps.num_replicas
    if batch % num_replicas or batch // num_replicas <= _FEW:
        yield Violation(
            observed_location(case.program, steps.where),
            f"the batch of {batch} samples is "
            + ("uneven" if batch % num_replicas else "small")
            + f" for {num_replicas} replicas.",
            why="The devices are given too few samples, or different numbers of them.",
            fix=f"take a multiple of {num_replicas}, such as {32 * num_replicas}.",
            evidence=(f"measured: {batch} samples, {num_replicas} replicas",),
        )
