"""DOC-210: surprises of CentralStorageStrategy and ParameterServerStrategy."""

from __future__ import annotations

from collections.abc import Iterator

from evener.analysis import Program
from evener.doctor.finding import Severity
from evener.doctor.queries.gpus import visible_gpus
from evener.doctor.queries.strategies import Made, strategies
from evener.doctor.queries.training import fits, is_beside_strategy
from evener.doctor.rule import Case, Violation

_SERVERS = ("ParameterServerStrategy", "ParameterServerStrategyV2")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    for made in strategies(case.program):
        if made.name == "CentralStorageStrategy":
            yield from _central(case, made)
        elif made.name in _SERVERS:
            yield from _servers(case.program, made)


def _central(case: Case, made: Made) -> Iterator[Violation]:
    if made.call.argument(1, "parameter_device") is not None or visible_gpus(case) == 1:
        return
    yield Violation(
        made.call.location,
        "CentralStorageStrategy keeps all variables on the CPU.",
        why="In each step every GPU fetches all weights from the host and sends all gradients "
        "back over the bus, and the optimizer runs on the CPU. (With a single GPU they are on "
        "that.) It is experimental, and for one machine only.",
        fix="take MirroredStrategy, or evener.Strategy(owners='sharded') where the weights are "
        "too large for one copy on each GPU.",
    )


def _servers(program: Program, made: Made) -> Iterator[Violation]:
    trained = [call for call in fits(program) if not is_beside_strategy(program, call)]
    for call in trained[:1]:
        yield Violation(
            call.location,
            "Keras's fit under ParameterServerStrategy.",
            why="Keras 3 has no coordinator: its fit gives no steps to the workers, as that of "
            "Keras 2 did.",
            fix="write a loop that gives steps to tf.distribute.coordinator.ClusterCoordinator("
            "strategy).schedule(step), or start the program on all machines by `evener launch`.",
            evidence=(call.location.text, made.call.location.text),
            severity=Severity.ERROR,
        )
    coordinated = any(True for _ in program.calls("tf.distribute.coordinator.*"))
    if not trained and not coordinated:
        yield Violation(
            made.call.location,
            "ParameterServerStrategy without a ClusterCoordinator.",
            why="Only a coordinator sends steps to the workers. Without it strategy.run does all "
            "work in this process, and the workers idle.",
            fix="coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy), and "
            "coordinator.schedule(step, args=(iterator,)) for each step.",
        )
