"""DOC-211: train_on_batch under a strategy does not split the batch."""

from __future__ import annotations

from collections.abc import Iterator

from evener.analysis import Call
from evener.doctor.finding import Severity
from evener.doctor.queries.strategies import Made, has_one_replica, strategies
from evener.doctor.queries.training import trainings
from evener.doctor.rule import Case, Violation

_SEVERAL = ("MirroredStrategy", "MultiWorkerMirroredStrategy", "TPUStrategy")
_FIX = (
    "give the data to model.fit, which splits each batch; or write a step with tf.GradientTape and "
    "call strategy.run(step, args=(batch,)) for the batches of "
    "strategy.experimental_distribute_dataset(dataset)."
)


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    made = [strategy for strategy in strategies(program) if strategy.name in _SEVERAL]
    if not made or has_one_replica(program):
        return
    for call in trainings(program):
        if call.method != "train_on_batch":
            continue
        if program.context.in_replica(call.module, call.node) is not False:
            yield Violation(
                call.location,
                "train_on_batch is called inside strategy.run.",
                why="train_on_batch calls strategy.run itself. In a replica it raises "
                "RuntimeError: Method requires being in cross-replica context.",
                fix=_FIX,
                evidence=(call.location.text, made[0].call.location.text),
                severity=Severity.ERROR,
            )
        elif _is_of_strategy(case, call):
            yield _repeated(call, made[0])


def _repeated(call: Call, made: Made) -> Violation:
    return Violation(
        call.location,
        f"under {made.name}, train_on_batch gives the whole batch to every replica.",
        why="train_on_batch does not distribute its arrays. Each replica computes all samples, so "
        "that several devices take as long as one.",
        fix=_FIX,
        evidence=(call.location.text, made.call.location.text),
    )


def _is_of_strategy(case: Case, call: Call) -> bool:
    """Return whether the model is made in a strategy's scope, as far as the source code shows."""
    program = case.program
    if call.owner is None:
        return False
    made = list(program.made_by(call.module, call.owner))
    return any(program.context.in_scope(module, node) is not False for module, node in made)
