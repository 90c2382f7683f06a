"""Candidates that are compared with one device: evener, or one that must fail or must pass.

The environment variable EVENER_TEST_CANDIDATE chooses:
  evener    (default) `evener.Strategy`
  plain     a second plain run: whatever fails is wrong in the tests
  mirrored  `tf.distribute.MirroredStrategy`: shows that the tests can fail
  workers   evener on two workers, each of which runs the tests with its `TF_CONFIG`
  cut       evener under a plan that cuts every share into two micro-batches, one in flight
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from evener.plan import Plan

CANDIDATE = os.environ.get("EVENER_TEST_CANDIDATE", "evener")
Shares = str | Sequence[float] | None


class Place(Protocol):
    """Devices on which an experiment makes and trains its models."""

    def scope(self) -> AbstractContextManager[object]: ...

    def set_shares(self, shares: Sequence[float]) -> None: ...


MakePlace = Callable[[int, Shares], Place]


@dataclass(frozen=True, slots=True)
class OneDevice:
    """Plain Keras on the first CPU."""

    def scope(self) -> AbstractContextManager[object]:
        return tf.device("/CPU:0")

    def set_shares(self, shares: Sequence[float]) -> None:
        """Do nothing: one device has the whole share."""


@dataclass(frozen=True, slots=True)
class Mirrored:
    """Keras under `tf.distribute.MirroredStrategy`."""

    strategy: tf.distribute.Strategy

    def scope(self) -> AbstractContextManager[object]:
        return self.strategy.scope()

    def set_shares(self, shares: Sequence[float]) -> None:
        """Do nothing: its shares are even, always."""


def make_candidate(num_devices: int, shares: Shares = "even") -> Place:
    """Return what the environment chose, on the first `num_devices` stand-ins."""
    if CANDIDATE == "plain":
        return OneDevice()
    if CANDIDATE == "mirrored":
        return Mirrored(tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)]))
    from evener.strategy import Strategy

    if CANDIDATE == "workers":
        return _Workers(num_devices, shares)
    if CANDIDATE == "cut":
        return Strategy(_cut(num_devices, None if isinstance(shares, str) else shares))
    return Strategy(devices=[f"cpu:{index}" for index in range(num_devices)], shares=shares)


class _Workers:
    """evener on two workers, of which the first has more devices, if there are more than two."""

    def __init__(self, num_devices: int, shares: Shares) -> None:
        from evener.strategy import Strategy

        index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        self._num_devices = max(2, num_devices)
        counts = (self._num_devices - self._num_devices // 2, self._num_devices // 2)
        given = shares if shares is None or isinstance(shares, str) else self._padded(shares)
        devices = [f"cpu:{number}" for number in range(counts[index])]
        self._strategy = Strategy(devices=devices, shares=given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def set_shares(self, shares: Sequence[float]) -> None:
        self._strategy.set_shares(self._padded(shares))

    def _padded(self, shares: Sequence[float]) -> list[float]:
        return [*shares, *[0.0] * (self._num_devices - len(shares))]


def _cut(num_devices: int, shares: Sequence[float] | None) -> Plan:
    plan = Plan.data_parallel([f"cpu:{index}" for index in range(num_devices)], shares=shares)
    replicas = [dataclasses.replace(replica, num_micro_batches=2) for replica in plan.replicas]
    return dataclasses.replace(plan, replicas=tuple(replicas))
