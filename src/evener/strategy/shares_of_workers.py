"""Shares of the replicas of several workers: all workers change them alike.

::

    times of own replicas ──► those of all workers ──► rebalance_shares ──► shares
                              one exchange, every `WINDOW` steps

Each worker rebalances by the same times and from the same state, so all come to the same shares.
After a change of the members, all begin anew with the shares of one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evener.feedback import ShareRebalancer
from evener.strategy.share_controller import ShareController, last_steps
from evener.workers.group import Group
from evener.workers.view import View


class SharesOfWorkers(ShareController):
    """Shares of the replicas of several workers, and their times.

    Args:
        devices: Names of the replicas' devices.
        shares: Relative shares to begin with.
        measured: Whether the shares are rebalanced by the measured times.
        group: The workers.
        workers: Worker of each replica.

    Attributes:
        workers: Worker of each replica.
    """

    def __init__(
        self,
        devices: Sequence[str],
        shares: Sequence[float],
        *,
        measured: bool,
        group: Group,
        workers: Sequence[int],
    ) -> None:
        self._there: tuple[int, ...] = tuple(range(len(devices)))
        super().__init__(devices, shares, measured=measured)
        self._planned = super().shares
        self._group = group
        self.workers = tuple(workers)

    @property
    def shares(self) -> tuple[float, ...]:
        """The fractions in use; 0 for replicas whose workers are gone."""
        found = [0.0] * len(self._devices)
        for replica, share in zip(self._there, self._rebalancer.shares, strict=True):
            found[replica] = share
        return tuple(found)

    def assign(self, shares: Sequence[float]) -> None:
        """Use other shares from the next step on; those of replicas that are gone do not count."""
        with self._lock:
            self._begin_anew([shares[replica] for replica in self._there])

    def common_state(self) -> Mapping[str, Any]:
        """Return what all workers begin with after a change of the members."""
        return {"shares": self.shares, "steps": self.num_steps}

    def begin_with(self, state: Mapping[str, Any], view: View) -> None:
        """Begin anew with other members.

        Args:
            state: `common_state` of one of them.
            view: The members.
        """
        stays = [w in view.members and w not in view.joined for w in self.workers]
        planned = sum(p for p, is_there in zip(self._planned, stays, strict=True) if is_there)
        shares = state["shares"]
        present = sum(share for share, is_there in zip(shares, stays, strict=True) if is_there)
        scale = present / planned if planned and present else 1.0
        shares = [
            share if is_there and present else plan * scale
            for share, plan, is_there in zip(shares, self._planned, stays, strict=True)
        ]
        if self._group.index in view.joined:
            # The next window ends at the same step everywhere.
            self._steps.assign(state["steps"])
        with self._lock:
            self._there = tuple(k for k, w in enumerate(self.workers) if w in view.members)
            self._begin_anew([shares[replica] for replica in self._there])

    def _begin_anew(self, shares: Sequence[float]) -> None:
        if not sum(shares):
            shares = [1.0] * len(shares)
        least = min(self._rebalancer.minimum_share, 1.0 / len(shares))
        self._rebalancer = ShareRebalancer(shares=tuple(shares), minimum_share=least)
        self.variable.assign(self.shares)

    def _rebalance_in_step(
        self, num_steps: Any, samples: Any, seconds: Any, shares: Any
    ) -> npt.NDArray[np.float64]:
        """Return the shares from the next step on."""
        label = f"times {int(num_steps)}"
        found = self._group.reduce_if_there(label, np.asarray(seconds, np.float64), "max")
        with self._lock:
            if found is not None and tuple(shares) == self.shares:
                steps = last_steps(int(num_steps), samples, found)
                self._rebalance(int(num_steps), [steps[replica] for replica in self._there])
            return np.asarray(self.shares)
