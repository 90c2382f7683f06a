"""Strategy across the workers of a job: their devices, and the shares of those that are there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from evener._tf_private import fits
from evener._tf_private.workers import Take, repeat_calls
from evener.checkpoint import others
from evener.engine.partition.sizes import rows_of_parts
from evener.engine.pipeline.layout import Layout
from evener.errors import PlanError
from evener.feedback.data_wait import DataWait
from evener.files import write_files_once
from evener.plan import Plan, PlanDevice, split_batch
from evener.plan.names import parse_device_name
from evener.strategy.shares_of_workers import SharesOfWorkers
from evener.workers.faults import other_program
from evener.workers.group import Group
from evener.workers.late import packed_as
from evener.workers.own_rows import BatchOfOwnRows, OwnRowsOfPipelines, Rows
from evener.workers.process import tell_person

_OF_LOOPS = (
    "every worker reads whole batches, for a loop of the program may look at them (Keras's fit, "
    "evaluate and predict map own rows)"
)


def devices_of_all(group: Group, own: Sequence[PlanDevice]) -> list[PlanDevice]:
    """Return the devices of all workers, such as ``"worker:1/gpu:0"``, in their order.

    A worker that died before it told them has a place for its replacement, with those of another.

    Args:
        group: The workers.
        own: The devices of this worker.

    Raises:
        RunError: RUN-094 if the others expect other devices here.
    """
    listed = [[d.name, d.kind, d.memory_bytes] for d in own]
    told = dict(group.exchange("devices", [group.index, listed]))
    of_another = next(iter(told.values()))
    everywhere = [told.get(worker, of_another) for worker in range(group.count)]
    expected = [name for name, *_ in everywhere[group.index]]
    if expected != [device.name for device in own]:
        raise other_program(f"{', '.join(expected)} as its devices")
    return [
        PlanDevice(name=f"worker:{worker}/{name}", kind=kind, memory_bytes=memory_bytes)
        for worker, devices in enumerate(everywhere)
        for name, kind, memory_bytes in devices
    ]


def own_devices(group: Group, plan: Plan) -> list[str]:
    """Return the devices of this worker in a plan for several, without their worker.

    Raises:
        PlanError: PLAN-052 if the plan is not for the workers of the job.
    """
    names = [parse_device_name(device.name) for device in plan.devices]
    planned = {-1 if name.worker is None else name.worker for name in names}
    if planned != set(range(group.count)):
        found = ", ".join(device.name for device in plan.devices)
        raise PlanError(
            "PLAN-052",
            f"The plan is not for the {group.count} workers of this job: its devices are {found}.",
            why="With several workers, a plan names devices of each of them, such as "
            "worker:0/gpu:0 and worker:1/gpu:0.",
            fix="Start as many workers as the plan has, or leave the plan out.",
        )
    return [f"{name.kind}:{name.index}" for name in names if name.worker == group.index]


def devices_of_owners(plan: Plan) -> list[str]:
    """Return the devices that own variables: the same list on all workers.

    They are those of the worker that has most; the others have fewer devices for the same owners.
    """
    by_worker: dict[int | None, list[str]] = {}
    for device in plan.devices:
        name = parse_device_name(device.name)
        by_worker.setdefault(name.worker, []).append(f"{name.kind}:{name.index}")
    return max(by_worker.values(), key=len)


def shares_of_workers(
    group: Group, layout: Layout, shares: Sequence[float], *, measured: bool
) -> SharesOfWorkers:
    """Return the shares of the replicas of all workers, which follow the members of the job.

    Args:
        group: The workers.
        layout: Replicas of all workers.
        shares: Relative shares to begin with.
        measured: Whether the shares are rebalanced by the measured times.
    """
    controller = SharesOfWorkers(
        layout.devices,
        shares,
        measured=measured,
        group=group,
        workers=layout.workers_of_replicas,
    )
    if len(group.view.members) < group.count:
        controller.begin_with(controller.common_state(), group.view)
    group.keep_common(controller.common_state, controller.begin_with)
    pipelines = OwnRowsOfPipelines(
        functools.partial(_own_rows, controller, group.index), is_late=lambda: group.is_late
    )
    fits.iterate_by(pipelines.iterable_of)
    repeat_calls(
        group,
        packed_as,
        take=_told(group, pipelines.explain),
        take_in_loops=_told(group, lambda: _OF_LOOPS),
        batch_type=BatchOfOwnRows,
    )
    others.work_with(group)
    write_files_once(group)
    return controller


def _told(group: Group, explain: Callable[[], str]) -> Take:
    """Return a function that takes batches, and tells once if this worker waits for them."""
    wait = DataWait(tell_person, explain, num_steps=lambda: group.num_steps)
    # A replacement that catches up reads as fast as it can.
    return lambda read: read() if group.is_late else wait.take(read)


def _own_rows(controller: SharesOfWorkers, worker: int, count: int) -> Rows:
    """Return the rows of a batch with so many that a worker computes by the present shares."""
    own = [replica for replica, each in enumerate(controller.workers) if each == worker]
    return rows_of_parts(split_batch(count, controller.shares), own)
