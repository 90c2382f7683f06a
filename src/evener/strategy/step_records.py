"""Records of the steps of a strategy, which outlive the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evener.checking.spot_check import SpotCheck
from evener.checking.verify import Verification
from evener.devices.names import without_worker
from evener.engine.memory.estimate import LiveRange, MemoryEstimate, estimate_memory, live_ranges_of
from evener.engine.partition.emit import PartitionedStep
from evener.engine.report import StepReport
from evener.errors import EngineError
from evener.plan import Replica
from evener.strategy.distributed_step import DistributedStep


class StepRecords:
    """Records of the steps of a strategy: reports, memory, differences from one device."""

    def __init__(self) -> None:
        self._reports: list[StepReport] = []
        self._live_ranges: list[list[LiveRange]] = []
        self._verifications: list[list[Verification]] = []
        self._spot_checks: list[list[SpotCheck]] = []

    def add_partitioned(self, step: PartitionedStep) -> None:
        """Add the report and the memory of a step that was partitioned."""
        self._reports.append(StepReport.of([step]))
        self._live_ranges.append(live_ranges_of(step))

    def follow(self, step: DistributedStep[..., Any]) -> None:
        """Add the checks of a step, those of its later runs too."""
        self._verifications.append(step.verifications)
        self._spot_checks.append(step.spot_checks)

    def report(self) -> StepReport:
        """Return one report of all steps."""
        return StepReport.merged(self._reports)

    @property
    def verifications(self) -> tuple[Verification, ...]:
        """The differences of the first runs from one device."""
        return tuple(found for of_step in self._verifications for found in of_step)

    @property
    def spot_checks(self) -> tuple[SpotCheck, ...]:
        """The results of all spot checks so far."""
        return tuple(found for of_step in self._spot_checks for found in of_step)

    def memory_estimate(
        self, replicas: Sequence[Replica], num_samples: int, owned: Mapping[str, int]
    ) -> dict[str, MemoryEstimate]:
        """Return the need of the most demanding step in the memory of every device.

        Args:
            replicas: Replicas of the plan, with their current shares.
            num_samples: Samples of the global batch.
            owned: Bytes of the variables of every device, by names such as ``"gpu:0"``.

        Raises:
            EngineError: ENG-011 if no step was partitioned yet, ENG-100 with several workers.
        """
        names = [stage.device for replica in replicas for stage in replica.stages]
        if any(without_worker(name) != name for name in names):
            raise memory_of_workers_unknown()
        if not self._live_ranges:
            raise EngineError(
                "ENG-011",
                "No step has been partitioned yet, so nothing is known of its memory.",
                why="The estimate is counted from the traced step of a plan with several devices, "
                "stages or micro-batches.",
                fix="Call it after a first step, such as fit on one batch.",
            )
        needs = [
            estimate_memory(live_ranges, replicas, num_samples, owned)
            for live_ranges in self._live_ranges
        ]
        return {
            name: max((need[name] for need in needs if name in need), key=lambda need: need.total)
            for name in dict.fromkeys(name for need in needs for name in need)
        }


def memory_of_workers_unknown() -> EngineError:
    """Return the error for the memory of several workers, whose devices have the same names."""
    return EngineError(
        "ENG-100",
        "The memory of steps on several workers is not known.",
        why="It is counted by the names of devices, and the devices of all workers have the same.",
        fix="Call it in a run of one worker, whose devices have the same shares of the batch.",
    )
