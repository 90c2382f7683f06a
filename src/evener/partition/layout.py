"""Layout of the parts of a step: the replicas, stages and micro-batches of a plan.

::

    replica 0, two stages, three micro-batches      replica 1, whole

    samples   | 0   1 | 2   3 | 4   5 |             | 6   7   8   9 |
    micro-batches 0       1       2                         3

A replica that is not split has one micro-batch, all its samples. The partitioner's parts are the
micro-batches.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from evener.devices.names import device_name, kind_of, tf_device
from evener.errors import EngineError
from evener.plan import BatchNormName, Plan, Replica, Stage
from evener.plan.parts import parse_device_name, parts_of_path

if TYPE_CHECKING:
    from evener.workers.group import Group

HOST = "/device:CPU:0"

Stages: TypeAlias = tuple[int, ...]  # Stage of a node in each replica


class MicroBatch(NamedTuple):
    """Samples that pass through the stages of a replica at once."""

    replica: int  # Number of the replica
    number: int  # Number of the micro-batch in the replica


@dataclass(frozen=True)
class Layout:
    """Layout of the parts of a step: which device computes which of them, and when."""

    replicas: tuple[Replica, ...]  # Replicas of the plan; their shares are not used
    recompute: tuple[str, ...] = ()  # Patterns of the recomputed layers
    # Statistics of BatchNormalization; see `evener.Plan`
    batch_norm: BatchNormName = "synchronized"
    group: Group | None = None  # The workers, seen by this one; None if there is one process
    by_xla: bool = True  # Whether XLA compiles the parts of functions with ``jit_compile=True``

    @classmethod
    def of(cls, plan: Plan, group: Group | None = None, *, by_xla: bool = True) -> Layout:
        return cls(plan.replicas, plan.recompute, plan.batch_norm, group, by_xla)

    @classmethod
    def of_devices(cls, names: Sequence[str]) -> Layout:
        """Return the layout with a whole replica on every device, such as ``"gpu:0"``."""
        return cls(tuple(Replica(share=1, stages=(Stage(device=name),)) for name in names))

    @functools.cached_property
    def micro_batches(self) -> tuple[MicroBatch, ...]:
        return tuple(
            MicroBatch(number, micro_batch)
            for number, replica in enumerate(self.replicas)
            for micro_batch in range(replica.num_micro_batches)
        )

    @functools.cached_property
    def is_scheduled(self) -> bool:
        return bool(self.recompute) or any(
            len(replica.stages) > 1 or replica.num_micro_batches > 1 for replica in self.replicas
        )

    @functools.cached_property
    def may_be_on_cpu(self) -> bool:
        return any(
            not kind_of(stage.device).has_own_processor
            for replica in self.replicas
            for stage in replica.stages
        )

    @functools.cached_property
    def own_devices(self) -> tuple[str, ...]:
        """The devices of this process that compute, without their worker: ``"gpu:0"``."""
        names = [
            parse_device_name(stage.device)
            for replica in self.replicas
            for stage in replica.stages
            if self.group is None
            or (parse_device_name(stage.device).worker or 0) == self.group.index
        ]
        return tuple(dict.fromkeys(f"{name.kind}:{name.index}" for name in names))

    @property
    def first_device(self) -> str:
        """TensorFlow's name of the first device of this process that computes."""
        return tf_device((self.own_devices or self.devices)[0])

    def own_device(self, device: str) -> str:
        """Return the device of this process that stands for a device of the common partition.

        All workers make the same partition, whichever devices they have.
        """
        if self.group is None or device == HOST:
            return device
        return tf_device(self.own_name(device_name(device)))

    def name_in_plan(self, device: str) -> str:
        """Return the name that a device of this process has in the plan."""
        return device if self.group is None else f"worker:{self.group.index}/{device}"

    def own_name(self, name: str) -> str:
        """Return the name of the device of this process that stands for one; see `own_device`."""
        return name if self.group is None else own_name(name, self.own_devices)

    @functools.cached_property
    def workers(self) -> tuple[int, ...]:
        """The worker of every micro-batch, from 0."""
        of_micro_batches: list[int] = []
        for number, replica in enumerate(self.replicas):
            workers = {parse_device_name(stage.device).worker or 0 for stage in replica.stages}
            if len(workers) > 1:
                devices = ", ".join(stage.device for stage in replica.stages)
                raise EngineError(
                    "ENG-096",
                    f"Replica {number} has stages on several workers: {devices}.",
                    why="Only sums and joined rows go from worker to worker, no activations.",
                    fix="Give each worker replicas of its own, with all of their stages.",
                )
            of_micro_batches += [*workers] * replica.num_micro_batches
        return tuple(of_micro_batches)

    @property
    def workers_of_replicas(self) -> tuple[int, ...]:
        pairs = zip(self.micro_batches, self.workers, strict=True)
        return tuple({micro_batch.replica: worker for micro_batch, worker in pairs}.values())

    def is_own(self, micro_batch: int) -> bool:
        return self.group is None or self.workers[micro_batch] == self.group.index

    @property
    def devices(self) -> tuple[str, ...]:
        """The device where each replica begins, such as ``"gpu:0"``."""
        return tuple(replica.stages[0].device for replica in self.replicas)

    @property
    def first_stages(self) -> Stages:
        return (0,) * len(self.replicas)

    def device(self, micro_batch: int, stages: Stages) -> str:
        """Return TensorFlow's name of the device that computes a micro-batch in a stage."""
        replica = self.micro_batches[micro_batch].replica
        return tf_device(self.replicas[replica].stages[stages[replica] if stages else 0].device)

    def stages_of(self, path: str) -> tuple[int | None, ...]:
        return tuple(_stage_of(path, replica) for replica in self.replicas)


def own_name(name: str, own: Sequence[str]) -> str:
    """Return the device of a worker that stands for a device of the common partition.

    >>> own_name("gpu:1", ["gpu:0", "gpu:1"]), own_name("gpu:1", ["cpu:0"])
    ('gpu:1', 'cpu:0')
    """
    return name if name in own else own[parse_device_name(name).index % len(own)]


def _stage_of(path: str, replica: Replica) -> int | None:
    if len(replica.stages) == 1:
        return 0
    for part in parts_of_path(path):
        matching = {
            number: pattern
            for number, stage in enumerate(replica.stages)
            for pattern in stage.layers
            if fnmatchcase(part, pattern)
        }
        if len(matching) > 1:
            (first, pattern), (second, other) = list(matching.items())[:2]
            raise EngineError(
                "ENG-041",
                f"The layer {part!r} is in two stages, {first} and {second}.",
                why=f"It matches {pattern!r} of stage {first} and {other!r} of stage {second}, and "
                "a layer is computed in one stage.",
                fix="Make the patterns of one stage narrower.",
            )
        if matching:
            return next(iter(matching))
    return None
