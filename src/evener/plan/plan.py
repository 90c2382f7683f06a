"""The Plan: who owns which variable, and who computes which samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evener.plan.names import HOST, HOST_DEVICE, parse_device_name
from evener.plan.owners import owner_of, owner_rules
from evener.plan.parts import (
    BatchNormName,
    Owners,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    ScheduleName,
    Stage,
    as_tuple,
    as_whole,
)
from evener.plan.places import text_at, wrong_type
from evener.plan.serialise import VERSION, read_fields, write_plan
from evener.plan.shares import check_shares
from evener.plan.validate import missing_devices, validate

Layout = Literal["one device", "data parallel", "central storage", "pipeline", "hybrid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who owns which variable, and who computes which samples of every batch.

    A plan that exists is valid in itself; `check_devices` holds it against the devices
    that are there. Plans are compared by value and can be keys.

    Args:
        devices: What it was made for, at least one.
        replicas: The models at work, at least one; their shares add up to more than 0.
        owners: ``"sharded"`` (spread over the devices), ``"central"`` (on the host), or
            rules of which the first that matches wins.
        recompute: Patterns of layers whose activations are computed again in the backward
            pass instead of being kept.
        batch_norm: ``"synchronized"``: BatchNormalization takes its statistics of the whole batch,
            as on one device; ``"per_device"``: of the samples that a device computes at once, which
            is cheaper, and the one choice whose results are not those of one device.
        predicted: What the planner expects, if a planner made it.
        rejected: What else was considered, and why not.
        version: Of the form in which plans are written; 1.

    Raises:
        PlanError: For everything that contradicts itself; the codes are in docs/plan.md.

    >>> plan = Plan.data_parallel(["gpu:0", "gpu:1"], shares=[320, 192])
    >>> plan.layout, plan.shares
    ('data parallel', (320.0, 192.0))
    """

    devices: tuple[PlanDevice, ...]
    replicas: tuple[Replica, ...]
    owners: Owners = "sharded"
    recompute: tuple[str, ...] = ()
    batch_norm: BatchNormName = "synchronized"
    predicted: Predicted | None = None
    rejected: tuple[Rejected, ...] = ()
    version: int = VERSION

    def __post_init__(self) -> None:
        """Bring lists into one form, and refuse a plan that contradicts itself."""
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
            devices: Names, or devices with their memory. One device is a plan too.
            shares: One per device, 0 or more; None for even shares.
            num_micro_batches: Into how many micro-batches the samples of each device are split.
                They are computed one after the other, so that the activations of one are in memory
                at a time.
            owners: As in `Plan`, or a mapping from pattern to device.
            batch_norm: As in `Plan`.

        Raises:
            PlanError: If devices, shares or owners are wrong.

        >>> Plan.data_parallel(["cpu:0", "cpu:1"], owners="central").layout
        'central storage'
        """
        # A text is a sequence too, of letters: say so before its letters are looked at.
        if isinstance(devices, str):
            raise wrong_type("devices", "a list", devices)
        named = tuple(_device(f"devices[{i}]", device) for i, device in enumerate(devices))
        given = [1.0] * len(named) if shares is None else shares
        # Without devices the plan itself says what is wrong.
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
            stages: Device and patterns of layers of each stage, in the order in which
                samples pass: a mapping, or pairs where a device has several stages.
            num_micro_batches: Into how many micro-batches every batch is split.
            in_flight: How many of them are alive at once; by default as many as there are
                stages, which keeps every device busy.
            schedule: As in `Replica`.
            recompute: As in `Plan`.
            owners: As in `Plan`, or a mapping from pattern to device. By default every
                variable lives where its layer is computed.
            batch_norm: As in `Plan`.

        Raises:
            PlanError: If one of them is wrong.

        >>> plan = Plan.pipeline({"gpu:0": "encoder_*", "gpu:1": ["decoder_*", "head"]},
        ...                      num_micro_batches=8)
        >>> plan.layout, plan.replicas[0].in_flight
        ('pipeline', 2)
        """
        pairs = list(stages.items()) if isinstance(stages, Mapping) else list(stages)
        names = dict.fromkeys(device for device, _ in pairs)
        most = max(1, min(len(pairs), num_micro_batches))
        replica = Replica(
            share=1,
            num_micro_batches=num_micro_batches,
            in_flight=most if in_flight is None else in_flight,
            schedule=schedule,
            stages=tuple(
                Stage(device=device, layers=(given,) if isinstance(given, str) else tuple(given))
                for device, given in pairs
            ),
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
        """Return the plan that a JSON text of `to_json` holds.

        Raises:
            PlanError: If the text is not JSON, not a plan, of an unknown version, or a plan
                that contradicts itself. The error names the place, such as
                ``replicas[1].stages[0].device``.
        """
        return cls(**read_fields(text))

    def to_json(self) -> str:
        """Return the plan as JSON, from which `from_json` makes an equal plan."""
        return write_plan(self)

    @property
    def layout(self) -> Layout:
        """The layout in words.

        One replica is ``"one device"`` or, with several stages, ``"pipeline"``. Several
        replicas are ``"hybrid"`` if one of them has several stages; ``"central storage"``
        if one device or the host owns all variables; else ``"data parallel"``.
        """
        if len(self.replicas) == 1:
            return "pipeline" if self.is_staged else "one device"
        if self.is_staged:
            return "hybrid"
        return "data parallel" if self.central_device is None else "central storage"

    @property
    def is_staged(self) -> bool:
        """Whether a replica has several stages."""
        return any(len(replica.stages) > 1 for replica in self.replicas)

    @property
    def is_scheduled(self) -> bool:
        """Whether replicas have several stages, micro-batches or layers computed again."""
        micro_batches = any(replica.num_micro_batches > 1 for replica in self.replicas)
        return self.is_staged or micro_batches or bool(self.recompute)

    @property
    def central_device(self) -> str | None:
        """The device that owns all variables, or None if more than one may own some."""
        if self.owners == "central":
            return HOST_DEVICE
        if self.owners == "sharded":
            return self.devices[0].name if len(self.devices) == 1 else None
        # Where no rule takes the rest, the rest may be owned by anyone.
        takes_all = any(rule.pattern.strip("*") == "" for rule in self.owners)
        used = {HOST_DEVICE if rule.device == HOST else rule.device for rule in self.owners}
        return used.pop() if takes_all and len(used) == 1 else None

    @property
    def device_names(self) -> tuple[str, ...]:
        """The names of the devices, in order."""
        return tuple(device.name for device in self.devices)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of every replica, in order, as they were given."""
        return tuple(replica.share for replica in self.replicas)

    @property
    def fractions(self) -> tuple[float, ...]:
        """The shares divided by their sum."""
        total = sum(self.shares)
        return tuple(share / total for share in self.shares)

    def owner_of(self, path: str) -> str | None:
        """Return the device that owns a variable, or None if the plan leaves it open.

        Args:
            path: The variable's path, such as ``"dense/kernel"``.

        Returns:
            With rules, the first that matches (``"host"`` as ``"cpu:0"``) or None; with
            ``"central"`` always ``"cpu:0"``; with ``"sharded"`` always None, because the
            engine spreads by bytes, which a path does not tell.
        """
        if self.owners == "central":
            return HOST_DEVICE
        return None if self.owners == "sharded" else owner_of(path, self.owners)

    def with_shares(self, shares: Sequence[float]) -> Plan:
        """Return the same plan with other shares.

        Args:
            shares: One per replica, 0 or more, with a sum above 0.

        Returns:
            The plan with these shares. ``predicted`` is left out unless they are the same:
            it was predicted for other ones.

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
        """Hold the plan against the devices that are there.

        Args:
            names: The names of the devices that are there. More than the plan needs is fine.

        Raises:
            PlanError: PLAN-029 naming the devices of the plan that are missing.
        """
        missing_devices(self.device_names, tuple(names))

    def __str__(self) -> str:
        """Return the plan as a plain text table."""
        # rich takes longer to import than everything else here; only a table needs it.
        from evener.plan.table import render_plan

        return render_plan(self)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        from evener.terminal import html_of

        return html_of(str(self))


def _device(place: str, device: str | PlanDevice) -> PlanDevice:
    if isinstance(device, PlanDevice):
        return device
    kind = parse_device_name(text_at(place, device), place=place).kind
    return PlanDevice(name=device, kind=kind)
