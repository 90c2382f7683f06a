"""A Ray cluster as the place of workers."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from evener.launch.on_ray import faults
from evener.launch.on_ray.node import NUM_THREADS, NodeWorker
from evener.launch.on_ray.ray_worker import RayWorker
from evener.launch.on_ray.resources import Resources, lacking
from evener.launch.placement import Start
from evener.workers.addresses import split_address

_SPOKEN_AFTER_SECONDS = 5.0
_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.5


def load_ray() -> Any:
    """Return the package Ray; RUN-085 if it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise faults.not_installed() from None


def _check_that_it_listens(address: str) -> None:
    """Raise an OSError if nobody listens at an address: Ray itself tries for minutes."""
    if address != "auto":
        with socket.create_connection(split_address(address, "--ray"), timeout=_CONNECT_SECONDS):
            pass


class RayCluster:
    """Starts workers on the nodes of a Ray cluster, of which this process is a driver.

    All workers get their places together, in a placement group of Ray, and spread over the nodes as
    far as possible. A worker that dies leaves its place to its replacement; if the node has died,
    Ray finds another place for it as soon as there is one. The address is ``host:port``, or
    ``"auto"`` for the cluster of this machine. RUN-086 if the cluster cannot be joined.
    """

    def __init__(self, address: str, needs: Sequence[Resources], *, place_seconds: float) -> None:
        self._needs = tuple(needs)
        self._place_seconds = place_seconds
        self._folder = os.getcwd()  # noqa: PTH109
        self._group: Any = None
        self._ray = load_ray()
        try:
            _check_that_it_listens(address)
            # What actors print is of no interest: workers are processes of their own.
            self._ray.init(address=address, log_to_driver=False, logging_level="warning")
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise faults.not_reached(address, faults.reason(error)) from error

    @property
    def host(self) -> str:
        """Address of this machine that all nodes reach."""
        return self._ray.util.get_node_ip_address()

    def reserve(self, tell: Callable[[str], None]) -> None:
        """Wait until Ray has places for all workers; RUN-087 if there are none in time.

        ``tell`` is called if it takes longer than some seconds.
        """
        bundles = [need.quantities() for need in self._needs]
        self._group = self._ray.util.placement_group(bundles, strategy="SPREAD")
        begin = time.monotonic()
        if self._is_reserved(begin + min(_SPOKEN_AFTER_SECONDS, self._place_seconds)):
            return
        tell(f"waiting for places of Ray: {self._described()}; {self._lacking()}")
        if not self._is_reserved(begin + self._place_seconds):
            raise faults.no_place(self._described(), self._place_seconds, self._lacking())

    def _is_reserved(self, deadline: float) -> bool:
        """Wait until a time for all places, and return whether they are there."""
        while (left := deadline - time.monotonic()) > 0:
            # Python handles signals between two calls alone.
            if self._group.wait(min(left, _POLL_SECONDS)):
                return True
        return self._group.wait(0)

    def start(self, start: Start) -> RayWorker:
        """Start a worker."""
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        place = strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=start.source[0]
        )
        options = self._needs[start.source[0]].actor_options()
        actor_class = self._ray.remote(**options)(NodeWorker)
        actor = actor_class.options(
            scheduling_strategy=place, max_concurrency=NUM_THREADS, max_restarts=0
        ).remote()
        return RayWorker(
            start, self._ray, actor, folder=self._folder, place_seconds=self._place_seconds
        )

    def stop(self) -> None:
        """Give the places back, and leave the cluster."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)
        self._ray.shutdown()

    def _described(self) -> str:
        counts = Counter(map(str, self._needs))
        return ", ".join(f"{count} workers with {needs}" for needs, count in counts.items())

    def _lacking(self) -> str:
        lacks = lacking(self._needs, self._ray.cluster_resources())
        free = self._ray.available_resources()
        parts = (f"{free.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))
        return lacks or f"of all nodes, {' and '.join(parts)} are free"
