"""Plan: owners of the variables, and devices that compute the samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from evener.plan.fields import PlanFields
from evener.plan.names import parse_device_name
from evener.plan.owners import owner_rules
from evener.plan.parts import BatchNormName, Owners, PlanDevice, Replica, ScheduleName, Stage
from evener.plan.serialise import read_fields, write_plan
from evener.plan.shares import check_shares
from evener.plan.typed_values import as_tuple, as_whole, items_at, text_at, wrong_type
from evener.plan.validate import missing_devices, validate


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(PlanFields):
    """Plan of a distributed training step: owners of the variables, and devices that compute.

    A plan is checked for consistency when it is made; `check_devices` compares it with the
    devices of the machine. Plans are compared by value and hashable.

    Args:
        devices: Devices that the plan is for, at least one.
        replicas: Replicas of the model, at least one; their shares add up to more than 0.
        owners: Owners of the variables: ``"sharded"`` (spread over the devices), ``"central"`` (on
            the host), or rules of which the first that matches wins.
        recompute: Patterns of layers whose activations are recomputed in the backward pass instead
            of being saved.
        batch_norm: Samples of the statistics of BatchNormalization. ``"synchronized"``: the global
            batch, as on one device; ``"per_device"``: the samples that a device computes at once,
            which is cheaper, but the only choice whose results differ from those of one device.
        predicted: Prediction, if a planner made the plan.
        rejected: Rejected alternatives, with reasons.
        version: Version of the JSON form of plans, 1.

    Raises:
        PlanError: PLAN-001 to PLAN-035 if the plan is inconsistent.
            ``evener doctor --explain CODE`` explains each.

    >>> plan = Plan.data_parallel(["gpu:0", "gpu:1"], shares=[320, 192])
    >>> plan.layout, plan.shares
    ('data parallel', (320.0, 192.0))
    """

    def __post_init__(self) -> None:
        """Normalize lists, and refuse an inconsistent plan."""
        for field in ("devices", "replicas", "owners", "recompute", "rejected"):
            object.__setattr__(self, field, as_tuple(getattr(self, field)))
        object.__setattr__(self, "version", as_whole(self.version))
        validate(self)

    @classmethod
    def data_parallel(
        cls,
        devices: Sequence[str | PlanDevice],
        *,
        shares: Sequence[float] | None = None,
        num_micro_batches: int = 1,
        owners: Owners | Mapping[str, str] = "sharded",
        batch_norm: BatchNormName = "synchronized",
    ) -> Plan:
        """Return the plan in which every device computes a whole replica.

        Args:
            devices: Device names, or devices with their memory; at least one.
            shares: Shares of the devices, 0 or more; None for even shares.
            num_micro_batches: Micro-batches per device. They are computed one after the other, so
                only the activations of one are in memory at a time.
            owners: Owners as in `Plan`, or a mapping from pattern to device.
            batch_norm: Statistics of BatchNormalization, as in `Plan`.

        Raises:
            PlanError: PLAN-001, PLAN-002 or PLAN-004 for wrong devices, PLAN-007 to PLAN-011 for
                wrong shares, PLAN-013 for less than one micro-batch, PLAN-003, PLAN-019 or PLAN-031
                for wrong owners.

        >>> Plan.data_parallel(["cpu:0", "cpu:1"], owners="central").layout
        'central storage'
        """
        listed = items_at("devices", devices)
        named = tuple(_device(f"devices[{i}]", device) for i, device in enumerate(listed))
        given = [1.0] * len(named) if shares is None else shares
        # Without devices the validation of the plan raises the error.
        checked = check_shares(given, num_expected=len(named)) if named else ()
        return cls(
            devices=named,
            replicas=tuple(
                Replica(
                    share=share,
                    num_micro_batches=num_micro_batches,
                    stages=(Stage(device=device.name),),
                )
                for share, device in zip(checked, named, strict=True)
            ),
            owners=owner_rules(owners) if isinstance(owners, Mapping) else owners,
            batch_norm=batch_norm,
        )

    @classmethod
    def pipeline(
        cls,
        stages: Mapping[str, str | Sequence[str]] | Sequence[tuple[str, str | Sequence[str]]],
        *,
        num_micro_batches: int = 1,
        in_flight: int | None = None,
        schedule: ScheduleName = "1f1b",
        recompute: Sequence[str] = (),
        owners: Owners | Mapping[str, str] = "sharded",
        batch_norm: BatchNormName = "synchronized",
    ) -> Plan:
        """Return the plan of one replica whose layers are spread over devices.

        Args:
            stages: Device and layer patterns of each stage, in the order in which samples pass: a
                mapping, or pairs if a device has several stages.
            num_micro_batches: Number of micro-batches that every batch is split into.
            in_flight: Most micro-batches alive at once; None for the number of stages, which
                keeps every device busy.
            schedule: Schedule, as in `Replica`.
            recompute: Patterns of recomputed layers, as in `Plan`.
            owners: Owners as in `Plan`, or a mapping from pattern to device. By default every
                variable lives on the device that computes its layer.
            batch_norm: Statistics of BatchNormalization, as in `Plan`.

        Raises:
            PlanError: PLAN-001, PLAN-004 or PLAN-006 for wrong devices or stages, PLAN-013 or
                PLAN-014 for wrong micro-batches, PLAN-015 to PLAN-018 for wrong patterns of
                layers, PLAN-034 for an unknown schedule.

        >>> plan = Plan.pipeline({"gpu:0": "encoder_*", "gpu:1": ["decoder_*", "head"]},
        ...                      num_micro_batches=8)
        >>> plan.layout, plan.replicas[0].in_flight
        ('pipeline', 2)
        """
        pairs = _pairs(stages)
        names = dict.fromkeys(device for device, _ in pairs)
        most = max(1, min(len(pairs), num_micro_batches))
        replica = Replica(
            share=1,
            num_micro_batches=num_micro_batches,
            in_flight=most if in_flight is None else in_flight,
            schedule=schedule,
            stages=tuple(Stage(device=device, layers=layers) for device, layers in pairs),
        )
        return cls(
            devices=tuple(_device(f"stages[{k}]", name) for k, name in enumerate(names)),
            replicas=(replica,),
            recompute=tuple(recompute),
            owners=owner_rules(owners) if isinstance(owners, Mapping) else owners,
            batch_norm=batch_norm,
        )

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan of a JSON text that `to_json` returned.

        Raises:
            PlanError: PLAN-021 if the text is not JSON, PLAN-022 for an unknown version,
                PLAN-020 and PLAN-023 to PLAN-025 if it is not a plan, the codes of `Plan` if it is
                inconsistent. The error names the path of the value, such as
                ``replicas[1].stages[0].device``.
        """
        return cls(**read_fields(text))

    def to_json(self) -> str:
        """Return the plan as JSON; `from_json` restores it."""
        return write_plan(self)

    def with_shares(self, shares: Sequence[float]) -> Plan:
        """Return the same plan with other shares.

        Args:
            shares: Shares of the replicas, 0 or more, with a sum above 0.

        Returns:
            The plan with these shares; without ``predicted`` if they differ, because it was
            predicted for other shares.

        Raises:
            PlanError: PLAN-007 to PLAN-011 for wrong shares.

        >>> Plan.data_parallel(["cpu:0", "cpu:1"]).with_shares([5, 3]).fractions
        (0.625, 0.375)
        """
        num_replicas = len(self.replicas)
        checked = check_shares(shares, num_expected=num_replicas, expected="replicas")
        replicas = tuple(
            dataclasses.replace(replica, share=share)
            for replica, share in zip(self.replicas, checked, strict=True)
        )
        predicted = self.predicted if checked == self.shares else None
        return dataclasses.replace(self, replicas=replicas, predicted=predicted)

    def check_devices(self, names: Iterable[str]) -> None:
        """Check that all devices of the plan are available.

        Args:
            names: Names of the available devices; more than the plan needs are allowed.

        Raises:
            PlanError: PLAN-029 naming the devices of the plan that are missing.
        """
        missing_devices(self.device_names, tuple(names))

    def __str__(self) -> str:
        """Return the plan as a plain text table."""
        # rich takes longer to import than everything else here, and only a table needs it.
        from evener.plan.table import render_plan

        return render_plan(self)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        from evener.terminal import html_of

        return html_of(str(self))


def _device(path: str, device: str | PlanDevice) -> PlanDevice:
    if isinstance(device, PlanDevice):
        return device
    kind = parse_device_name(text_at(path, device), path=path).kind
    return PlanDevice(name=device, kind=kind)


def _pairs(stages: object) -> list[tuple[str, tuple[str, ...]]]:
    """Return the device and the layer patterns of each stage.

    Raises:
        PlanError: PLAN-020 if it is neither a mapping nor a list of pairs.
    """
    if isinstance(stages, Mapping):
        stages = tuple(cast("Mapping[Any, Any]", stages).items())
    pairs: list[tuple[str, tuple[str, ...]]] = []
    for index, pair in enumerate(items_at("stages", stages, "a mapping from devices to layers")):
        stage = items_at(f"stages[{index}]", pair, "a device with its layers")
        if len(stage) != 2:
            raise wrong_type(f"stages[{index}]", "a device with its layers", pair)
        device, layers = stage
        if isinstance(layers, str):
            layers = (layers,)
        pairs.append((device, tuple(items_at(f"stages[{index}].layers", layers))))
    return pairs
