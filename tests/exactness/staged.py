"""Plans with stages for the models of the law, made from the names of their layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import keras

from evener.plan import Plan, PlanDevice, Replica, Stage, owner_rules
from evener.strategy import Strategy

from .candidates import MakePlace
from .harness import start


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Stages and micro-batches of one replica.

    Attributes:
        devices: The device of each stage, as the number of a stand-in.
        micro_batches: Number of micro-batches that its samples are split into.
        in_flight: Number of micro-batches that are alive at once.
        schedule: Order of the passes of the micro-batches.
        share: The share of the replica.
    """

    devices: tuple[int, ...]
    micro_batches: int = 1
    in_flight: int = 1
    schedule: str = "1f1b"
    share: float = 1.0

    def __str__(self) -> str:
        devices = "".join(map(str, self.devices))
        return f"{self.schedule}-on{devices}-m{self.micro_batches}f{self.in_flight}"


def layer_names(build: Callable[[], keras.Model]) -> list[str]:
    """Return the names of a model's layers, such that none comes before what it needs."""
    start()
    model = build()
    return [layer.name for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]


def plan_of(
    names: Sequence[str],
    *cuts: Cut,
    recompute: Sequence[str] = (),
    owners: Mapping[str, str] | str = "sharded",
) -> Plan:
    """Return the plan that cuts layers into runs of about the same length."""
    numbers = sorted({device for cut in cuts for device in cut.devices})
    return Plan(
        devices=tuple(PlanDevice.named(f"cpu:{k}") for k in numbers),
        replicas=tuple(_replica(names, cut) for cut in cuts),
        recompute=tuple(recompute),
        owners=owner_rules(owners) if isinstance(owners, Mapping) else owners,
    )


def _replica(names: Sequence[str], cut: Cut) -> Replica:
    num_stages = min(len(cut.devices), len(names))
    bounds = [round(k * len(names) / num_stages) for k in range(num_stages + 1)]
    runs = [tuple(names[a:b]) for a, b in itertools.pairwise(bounds)]
    return Replica(
        share=cut.share,
        num_micro_batches=cut.micro_batches,
        in_flight=min(cut.in_flight, cut.micro_batches),
        schedule=cut.schedule,
        stages=tuple(
            Stage(device=f"cpu:{device}", layers=run)
            for device, run in zip(cut.devices, runs, strict=False)
        ),
    )


def place_for(plan: Plan) -> MakePlace:
    """Return what makes a strategy for the plan, whatever devices the harness asks for."""
    return lambda num_devices, shares: Strategy(plan)
