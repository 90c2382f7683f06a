"""What a step needs on every device, counted from the functions of its stages.

    variables    weights, optimizer slots and other state that the device owns
    borrowed     weights of other owners: of the stage that computes, and of the next one
    gradients    of the weights of its stages, until their owners have them, and of what it owns
    activations  what tasks give each other, and samples

All are those of one moment, the worst of the step. It is what must be there, not all that is:
the results of single operations come on top, those of the optimizer's update among them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evener.engine.staged.stages.driver import StagedFunctions
from evener.engine.staged.stages.lifetimes import Lifetime, Lifetimes
from evener.plan import split_batch

if TYPE_CHECKING:
    from evener.engine.staged.step import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a step needs on one device at its worst moment, in bytes."""

    variables: int = 0
    borrowed: int = 0
    gradients: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.variables + self.borrowed + self.gradients + self.activations


def footprints(steps: Steps, num_samples: int) -> dict[str, Footprint]:
    """Return what one training step needs on every device.

    Args:
        steps: Of a model whose plan has stages or micro-batches, traced for training. For
            others only the variables are known.
        num_samples: Samples of the global batch.
    """
    program = steps.program
    strategy = program.strategy
    needs = {name: Footprint(variables=n) for name, n in strategy.ledger.owned_bytes().items()}
    if not isinstance(steps.functions, StagedFunctions):
        return needs
    samples = split_batch(num_samples, program.plan.shares)
    for replica, count in zip(program.plan.replicas, samples, strict=True):
        cut = steps.functions.made_for_training(replica)
        if cut is None:
            continue
        size = math.ceil(count / replica.num_micro_batches)
        lifetimes = Lifetimes(cut, replica, program.replica.trainable, size)
        for device, most in at_worst(lifetimes.all()).items():
            _add(needs, device, **most)
    return needs


def at_worst(lifetimes: Iterable[Lifetime]) -> dict[str, dict[str, int]]:
    """Return for each device the bytes of each kind at the moment when all are the most.

    Args:
        lifetimes: What is in memory, where and when. At one time, what is given back goes
            before what is taken.
    """
    changes: dict[str, list[tuple[float, bool, str, int]]] = {}
    for device, kind, begin, end, num_bytes in lifetimes:
        of_device = changes.setdefault(device, [])
        of_device += [(begin, True, kind, num_bytes), (end, False, kind, -num_bytes)]
    worst: dict[str, dict[str, int]] = {}
    for device, of_device in changes.items():
        now = dict.fromkeys((kind for _, _, kind, _ in of_device), 0)
        worst[device] = dict(now)
        for _, _, kind, change in sorted(of_device):
            now[kind] += change
            if sum(now.values()) > sum(worst[device].values()):
                worst[device] = dict(now)
    return worst


def _add(needs: dict[str, Footprint], device: str, **more: int) -> None:
    before = needs.get(device, Footprint())
    sums = {name: getattr(before, name) + value for name, value in more.items()}
    needs[device] = dataclasses.replace(before, **sums)
