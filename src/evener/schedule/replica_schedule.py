"""Schedule of a replica: the order of tasks on each device.

::

    stages on                       1f1b            gpipe           zero_bubble
    separate devices                1F1B            GPipe           ZB-H1             orders.py
    devices in turns, a b a b       interleaved     merged          merged            orders.py
    shared in any other way         merged          merged          merged            merging.py

A schedule has no times: each device runs its tasks one after the other, each as soon as its
dependencies have ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from evener.plan.parts import Replica
from evener.schedule.merging import merged_orders
from evener.schedule.orders import (
    gpipe_order,
    interleaved_order,
    one_f_one_b_order,
    zero_bubble_order,
)
from evener.schedule.task import Task

_ORDERS = {
    "1f1b": one_f_one_b_order,
    "gpipe": gpipe_order,
    "zero_bubble": zero_bubble_order,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Tasks of a replica, in one order per device.

    Args:
        devices: Distinct device names, in the order of their first stages.
        orders: Tasks of each device, in order.
    """

    devices: tuple[str, ...]
    orders: tuple[tuple[Task, ...], ...]

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return 1 + max(task.stage for order in self.orders for task in order)

    def __str__(self) -> str:
        """Return one line per device, with tasks as ``F<micro-batch>.<stage>``."""
        width = max(map(len, self.devices))
        return "\n".join(
            f"{device:{width}}  {' '.join(map(str, order))}"
            for device, order in zip(self.devices, self.orders, strict=True)
        )


def schedule_for(replica: Replica) -> Schedule:
    """Return the schedule of a training step.

    At most ``in_flight`` micro-batches are alive in the replica at once, from the start of their
    forward pass to the end of their backward pass in stage 0, whatever the times of the tasks. Of
    these, a stage s holds at most

    - ``max(1, in_flight - s)`` under ``"1f1b"``, and ``in_flight`` if it is interleaved;
    - ``in_flight`` under ``"gpipe"``;
    - ``max(1, in_flight - s)`` under ``"zero_bubble"``, or ``in_flight`` including those that wait
      for their weight gradients.

    Under ``"1f1b"`` the interleaved order is used if the stages go round two or more devices at
    least twice, the number of micro-batches is a multiple of the number of devices, and
    ``in_flight`` is at least twice the number of devices, or all micro-batches.

    Args:
        replica: Valid replica of a plan.

    Returns:
        The schedule; every stage has a forward and a backward task for each micro-batch,
        under ``"zero_bubble"`` a weights task too.

    >>> from evener.plan import Stage
    >>> stages = (Stage(device="gpu:0", layers=("a",)), Stage(device="gpu:1", layers=("b",)))
    >>> print(schedule_for(Replica(share=1, stages=stages, num_micro_batches=3, in_flight=2)))
    gpu:0  F0.0 F1.0 B0.0 F2.0 B1.0 B2.0
    gpu:1  F0.1 B0.1 F1.1 B1.1 F2.1 B2.1
    """
    devices, stages_of_devices = _stages_of_devices(replica)
    if len(devices) == len(replica.stages):
        order = _ORDERS[replica.schedule]
        orders = tuple(
            tuple(
                order(
                    stage=stage,
                    num_micro_batches=replica.num_micro_batches,
                    in_flight=replica.in_flight,
                )
            )
            for stage in range(len(devices))
        )
    elif _is_interleaved(replica, len(devices)):
        orders = tuple(
            tuple(
                interleaved_order(
                    rank=rank,
                    num_devices=len(devices),
                    num_rounds=len(replica.stages) // len(devices),
                    num_micro_batches=replica.num_micro_batches,
                )
            )
            for rank in range(len(devices))
        )
    else:
        orders = merged_orders(replica, stages_of_devices)
    return Schedule(devices=devices, orders=orders)


def forward_schedule_for(replica: Replica) -> Schedule:
    """Return the schedule of evaluation, which has only forward passes.

    Each device computes the micro-batches in order, and each micro-batch in the order of its
    stages. Nothing is saved for a backward pass, so ``schedule`` and ``in_flight`` are ignored.

    >>> from evener.plan import Stage
    >>> stages = [Stage(device=name, layers=(name,)) for name in ("cpu:0", "cpu:1", "cpu:0")]
    >>> print(forward_schedule_for(Replica(share=1, stages=stages, num_micro_batches=2)))
    cpu:0  F0.0 F0.2 F1.0 F1.2
    cpu:1  F0.1 F1.1
    """
    devices, stages_of_devices = _stages_of_devices(replica)
    orders = tuple(
        tuple(
            Task("forward", stage, micro_batch)
            for micro_batch in range(replica.num_micro_batches)
            for stage in stages
        )
        for stages in stages_of_devices
    )
    return Schedule(devices=devices, orders=orders)


def _stages_of_devices(replica: Replica) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    stages: dict[str, list[int]] = {}
    for number, stage in enumerate(replica.stages):
        stages.setdefault(stage.device, []).append(number)
    return tuple(stages), tuple(map(tuple, stages.values()))


def _is_interleaved(replica: Replica, num_devices: int) -> bool:
    names = [stage.device for stage in replica.stages]
    num_micro_batches = replica.num_micro_batches
    return (
        replica.schedule == "1f1b"
        and num_devices > 1
        and len(names) % num_devices == 0
        and names == names[:num_devices] * (len(names) // num_devices)
        and num_micro_batches % num_devices == 0
        and replica.in_flight >= min(num_micro_batches, 2 * num_devices)
    )
