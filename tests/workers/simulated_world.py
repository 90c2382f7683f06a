"""World of a simulated job: a program and its states, a clock, events, faults."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import greenlet
import numpy as np

HEARTBEAT = 10.0
START = 60.0
GRACE = 20.0
PATIENCE = 600.0
RESTARTS = 12
LONGEST = 300.0
"""Virtual seconds within which every job ends."""
MOST_EVENTS = 50_000
_PRIME = (1 << 61) - 1


class Wrong(Exception):
    """A job broke one of its promises."""


class Killed(greenlet.GreenletExit):
    """The end of a process, which nothing of it survives."""


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a program.

    Attributes:
        kind: ``"train"``, ``"test"``: a call with exchanges; ``"alone"``: a call without one;
            ``"assign"``, ``"reset"``: eager assignments; ``"save"``, ``"agree"``: exchanges outside
            of steps.
        number: Number that makes it different from others.
    """

    kind: str
    number: int


def draw_program(rng: random.Random) -> list[Item]:
    """Return a program of some epochs with validations, saves and schedules of learning rates."""
    items: list[Item] = []
    saves, tests = rng.random() < 0.6, rng.random() < 0.5
    for epoch in range(rng.choice([1, 1, 1, 2, 2, 3])):
        if rng.random() < 0.7:
            items.append(Item("assign", epoch))
        items.append(Item("reset", epoch))
        items += [Item("train", step) for step in range(rng.choice([1, 1, 1, 2, 3]))]
        if rng.random() < 0.2:
            items.append(Item("alone", epoch))
        if tests:
            items.append(Item("test", epoch))
        if saves:
            items.append(Item("save", epoch))
        elif rng.random() < 0.3:
            items.append(Item("agree", epoch))
    return items


@dataclass(slots=True)
class Values:
    """State of a worker: what `evener.workers.state.Variables` holds for a program.

    Attributes:
        weights: Large variable that training steps write.
        metric: Small variable that every step writes.
        rate: Large variable that the program assigns between steps, and steps read.
        count: Python's own state: the items so far.
    """

    weights: int = 1
    metric: int = 0
    rate: int = 1
    count: int = 0

    def apply(self, item: Item, total: int) -> None:
        match item.kind:
            case "train":
                self.weights = (self.weights * 31 + total * self.rate + item.number) % _PRIME
                self.metric += total
            case "test" | "alone":
                self.metric = (self.metric + total * 7 + item.number) % _PRIME
            case "assign":
                self.rate = item.number + 2
            case "reset":
                self.metric = 0
        self.count += 1

    def state(self) -> tuple[int, int, int, int]:
        return self.weights, self.metric, self.rate, self.count

    # What the group asks of its variables.

    def values(self) -> tuple[np.ndarray, ...]:
        return tuple(np.asarray(value) for value in (self.weights, self.metric, self.rate))

    def assign(self, values: Sequence[np.ndarray]) -> None:
        self.weights, self.metric, self.rate = map(int, values)

    def small_values(self) -> list[np.ndarray]:
        return [np.asarray(self.metric)]

    def assign_small(self, values: Sequence[np.ndarray]) -> None:
        self.metric = int(values[0])

    def by_name(self) -> dict[str, np.ndarray]:
        return dict(zip(("weights", "metric", "rate"), self.values(), strict=True))

    def is_large(self, handle: object) -> bool:
        return False


def reference(program: Sequence[Item]) -> list[tuple[int, int, int, int]]:
    """Return the state of one undisturbed device before each item, and at the end."""
    values, states = Values(), []
    for position, item in enumerate(program):
        states.append(values.state())
        values.apply(item, batch_of(position))
    return [*states, values.state()]


def batch_of(position: int) -> int:
    """Return the sum over the batch of the call at a position of the program."""
    return position * 97 + 13


class World:
    def __init__(
        self,
        seed: int,
        launcher: Callable[[World], Any],
        faults: Sequence[tuple[int, str]] | None = None,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0.0
        self.num_events = 0
        self.log: list[str] | None = None
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._ids = itertools.count()
        self.count = self.rng.choice([2, 2, 2, 3, 3, 4])
        self.program = draw_program(self.rng)
        self.expected = reference(self.program)
        self.rounds = self.rng.choice([1, 1, 1, 2])
        # In one of so many jobs, the group does not see the results of exchanges.
        self.uses_collectives = seed % 5 == 2
        self.latency = self.rng.choice([0.0005, 0.01, 0.2])
        self.start_delay = self.rng.choice([0.05, 0.5, 5.0])
        self.processes: dict[int, Any] = {}
        self.saves: dict[int, int] = {}
        self.has_reached_end = self.disagreed = False
        self.result: int | None = None
        self.quitter: tuple[int, int] | None = None
        self.meetings: dict[int, dict[int, Any]] = {}
        self.coordinator: Any = None
        # One in so many jobs has few replacements.
        self.restarts = seed // 13 % 2 if seed % 13 == 12 else RESTARTS
        self.launcher = launcher(self)
        length = 40 + 8 * self.count * len(self.program) * self.rounds
        drawn = [
            (self.rng.randint(1, length), self.rng.choice(FAULTS))
            for _ in range(self.rng.choice([1, 1, 2, 3]))
        ]
        # A program that ends early where nobody is left to go on has ended, as far as one can know.
        quits = [fault for fault in drawn if fault[1] == "quit"][:1]
        quits += [(quits[0][0] + 200, "kill")] if quits and len(drawn) > 1 else []
        self.faults = (quits or sorted(drawn)) if faults is None else list(faults)

    def note(self, text: str) -> None:
        if self.log is not None:
            self.log.append(f"{self.now:8.3f} {text}")

    def at(self, delay: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._ids), act))

    def delay(self) -> float:
        return self.rng.random() * self.latency

    def run(self) -> int:
        left = list(self.faults)
        self.launcher.start()
        while self.result is None:
            if not self._heap:
                raise Wrong(f"all wait for ever: {self.waits()}")
            self.now, _, act = heapq.heappop(self._heap)
            if self.now > LONGEST or self.num_events > MOST_EVENTS:
                raise Wrong(f"it goes on after {self.num_events} events: {self.waits()}")
            act()
            self.num_events += 1
            while left and self.num_events >= left[0][0]:
                self._break(left.pop(0)[1])
        if self.result == 0 and not self.has_reached_end:
            raise Wrong("exit 0, and no worker has come to the end of the program")
        quits = any(kind == "quit" for _, kind in self.faults)
        is_spent = self.restarts < RESTARTS and not self.waits()
        if self.result != 0 and not is_spent and not (quits and self.disagreed):
            raise Wrong(f"the job was lost with exit code {self.result}")
        return self.result

    def close(self) -> None:
        for each in self.processes.values():
            each.kill()

    def waits(self) -> str:
        """Return what the living processes wait for."""
        return "; ".join(each.describe() for each in self.processes.values() if each.is_alive)

    def _break(self, kind: str) -> None:
        there = [each for each in self.processes.values() if each.is_alive]
        if not there:
            return
        victims = self.rng.sample(there, min(len(there), 2 if kind == "kill two" else 1))
        for victim in victims:
            self.note(f"fault: {kind} {victim}")
            match kind:
                case "kill" | "kill two":
                    victim.end(-9)
                case "freeze":
                    victim.freeze(self.rng.choice([0.3, 4.0, 12.0, 60.0]))
                case "quit":
                    victim.quits = True
                case "cut":
                    victim.cut()


FAULTS = ["kill", "kill", "kill", "kill two", "freeze", "freeze", "cut", "quit"]
