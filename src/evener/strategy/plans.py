"""The plan that a strategy's arguments mean, and what runs it: its layout and its shares.

With several workers, a plan names the devices of all of them, and the shares follow the members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evener._tf_private import fits
from evener._tf_private.workers import Take, repeat_calls
from evener.checkpoint import others
from evener.devices import UsedDevice, resolve_devices, use_devices
from evener.errors import DeviceError, PlanError
from evener.partition.layout import Layout
from evener.partition.tensors import rows_of_parts
from evener.plan import BatchNormName, OwnerRule, Plan, PlanDevice, split_batch
from evener.plan.parts import parse_device_name
from evener.planner.rebalancing import DataWait
from evener.strategy.shares import ShareController, SharesOfWorkers
from evener.workers.faults import other_program
from evener.workers.files import write_files_once
from evener.workers.group import Group
from evener.workers.late import pack_results
from evener.workers.own_rows import BatchOfOwnRows, OwnRowsOfPipelines, Rows
from evener.workers.process import group_of_process, tell_person

_WHOLE_BATCHES = (
    "every worker reads whole batches, for a loop of the program may look at them (Keras's fit, "
    "evaluate and predict map own rows)"
)


def used_devices(devices: str | Sequence[str] | None) -> tuple[UsedDevice, ...]:
    if devices is None or isinstance(devices, str):
        return use_devices(devices)
    return resolve_devices(devices)


def chosen_plan(
    plan: Plan | None,
    *,
    devices: str | Sequence[str] | None,
    shares: str | Sequence[float] | None,
    owners: str | Mapping[str, str] | None = None,
    batch_norm: BatchNormName | None,
) -> tuple[Plan, Group | None]:
    """Join the other workers, take the devices into use, and return the plan and the workers.

    The arguments are those of `evener.Strategy`.
    """
    _check_is_plan(plan)
    group = group_of_process(devices=devices if plan is None else plan.device_names)
    if plan is None:
        everywhere = [
            PlanDevice(name=d.name, kind=d.kind, memory_bytes=d.memory_bytes)
            for d in used_devices(devices)
        ]
        if group is not None:
            everywhere = devices_of_all(group, everywhere)
        if isinstance(shares, str):
            if shares != "even":
                raise PlanError(
                    "PLAN-050",
                    f"shares={shares!r} is not known.",
                    why="Shares are numbers, 'even', or None to have them measured.",
                    fix="Write shares='even' or for example shares=[320, 192].",
                )
            shares = None
        rules: Any = owners or "sharded"
        if isinstance(rules, Mapping):
            rules = tuple(OwnerRule(pattern=p, device=d) for p, d in rules.items())
        plan = Plan.data_parallel(
            everywhere, shares=shares, owners=rules, batch_norm=batch_norm or "synchronized"
        )
        return plan, group
    excluded = {"devices": devices, "shares": shares, "owners": owners, "batch_norm": batch_norm}
    present = [name for name, value in excluded.items() if value is not None]
    if present:
        raise PlanError(
            "PLAN-051",
            f"A plan was given together with {', '.join(present)}.",
            why="The plan already says which devices, shares and owners there are.",
            fix="Change the plan, for example with plan.with_shares([...]), or leave it out.",
        )
    try:
        resolve_devices(plan.device_names if group is None else own_devices(group, plan))
    except DeviceError:
        plan.check_devices([device.name for device in use_devices(None)])
        raise
    return plan, group


def _check_is_plan(plan: object) -> None:
    """Refuse what is neither a plan nor None, such as a device spec or the name of a file."""
    if plan is None or isinstance(plan, Plan):
        return
    if isinstance(plan, str) and plan.endswith(".json"):
        fix = f"plan=evener.Plan.from_json(pathlib.Path({plan!r}).read_text())"
    else:
        devices = plan if isinstance(plan, str | list | tuple) else "cpu:2"
        fix = f"devices={devices!r}"
    raise PlanError(
        "PLAN-053",
        f"{plan!r} is not a plan.",
        why=f"The first argument of a strategy is an evener.Plan; this is of type "
        f"{type(plan).__name__}. Devices are a keyword argument, and a file of a plan is read "
        "first.",
        fix=f"Write {fix}.",
    )


def devices_of_all(group: Group, own: Sequence[PlanDevice]) -> list[PlanDevice]:
    """Return the devices of all workers, such as ``"worker:1/gpu:0"``, in their order.

    A worker that died before it told them has a place for its replacement, with those of another.
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
    """Return the devices of this worker in a plan for several, without their worker."""
    names = [parse_device_name(device.name) for device in plan.devices]
    planned = {-1 if name.worker is None else name.worker for name in names}
    if planned != set(range(group.count)):
        devices = ", ".join(device.name for device in plan.devices)
        raise PlanError(
            "PLAN-052",
            f"The plan is not for the {group.count} workers of this job: its devices are "
            f"{devices}.",
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


def arrange(
    plan: Plan, group: Group | None, *, measured: bool, by_xla: bool = True
) -> tuple[Layout, ShareController]:
    layout = Layout.of(plan, group, by_xla=by_xla)
    if group is None:
        memory_bytes = [device.memory_bytes for device in plan.devices] if measured else ()
        return layout, ShareController(
            layout.devices, plan.shares, measured=measured, memory_bytes=memory_bytes
        )
    controller = SharesOfWorkers(
        layout.devices,
        plan.shares,
        measured=measured,
        group=group,
        workers=layout.workers_of_replicas,
    )
    if len(group.view.members) < group.count:
        controller.begin_with(controller.common_state(), group.view)
    group.keep_common(controller.common_state, controller.begin_with)

    def own_rows(count: int) -> Rows:
        own = [replica for replica, each in enumerate(controller.workers) if each == group.index]
        return rows_of_parts(split_batch(count, controller.shares), own)

    pipelines = OwnRowsOfPipelines(own_rows, is_late=lambda: group.is_late)
    fits.iterate_by(pipelines.iterable_of)
    repeat_calls(
        group,
        pack_results,
        take=_take_of(group, pipelines.explain),
        take_in_loops=_take_of(group, lambda: _WHOLE_BATCHES),
        batch_type=BatchOfOwnRows,
    )
    others.work_with(group)
    write_files_once(group)
    return layout, controller


def _take_of(group: Group, explain: Callable[[], str]) -> Take:
    """Return a function that takes batches, and tells once if this worker waits for them."""
    wait = DataWait(tell_person, explain, num_steps=lambda: group.num_steps)
    # A replacement that catches up reads as fast as it can.
    return lambda read: read() if group.is_late else wait.take(read)
