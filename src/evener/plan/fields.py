"""Fields of a plan, and what follows from them; the parts that check and show a plan read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evener.plan.names import HOST, HOST_DEVICE
from evener.plan.owners import owner_of
from evener.plan.parts import BatchNormName, Owners, PlanDevice, Predicted, Rejected, Replica

VERSION = 1
"""Version of the JSON form of plans."""

Layout = Literal["one device", "data parallel", "central storage", "pipeline", "hybrid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFields:
    """Fields of a `Plan`, which documents and checks them."""

    devices: tuple[PlanDevice, ...]
    replicas: tuple[Replica, ...]
    owners: Owners = "sharded"
    recompute: tuple[str, ...] = ()
    batch_norm: BatchNormName = "synchronized"
    predicted: Predicted | None = None
    rejected: tuple[Rejected, ...] = ()
    version: int = VERSION

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
        """Whether replicas have several stages, micro-batches or recomputed layers."""
        micro_batches = any(replica.num_micro_batches > 1 for replica in self.replicas)
        return self.is_staged or micro_batches or bool(self.recompute)

    @property
    def central_device(self) -> str | None:
        """The device that owns all variables, or None if more than one may own some."""
        if self.owners == "central":
            return HOST_DEVICE
        if self.owners == "sharded":
            return self.devices[0].name if len(self.devices) == 1 else None
        # Without a catch-all rule, any device may own the remaining variables.
        takes_all = any(rule.pattern.strip("*") == "" for rule in self.owners)
        used = {HOST_DEVICE if rule.device == HOST else rule.device for rule in self.owners}
        return used.pop() if takes_all and len(used) == 1 else None

    @property
    def device_names(self) -> tuple[str, ...]:
        """The names of the devices, in order."""
        return tuple(device.name for device in self.devices)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of every replica, in order, not normalized."""
        return tuple(replica.share for replica in self.replicas)

    @property
    def fractions(self) -> tuple[float, ...]:
        """The shares divided by their sum."""
        total = sum(self.shares)
        return tuple(share / total for share in self.shares)

    def owner_of(self, path: str) -> str | None:
        """Return the device that owns a variable, or None if the plan leaves it open.

        Args:
            path: Path of the variable, such as ``"dense/kernel"``.

        Returns:
            With rules, the device of the first that matches (``"host"`` as ``"cpu:0"``) or None;
            with ``"central"`` always ``"cpu:0"``; with ``"sharded"`` always None, because the
            engine spreads by bytes, which a path does not tell.
        """
        if self.owners == "central":
            return HOST_DEVICE
        return None if self.owners == "sharded" else owner_of(path, self.owners)
