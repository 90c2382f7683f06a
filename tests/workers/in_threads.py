"""Steps on several workers that are threads of one process, with faults at chosen points."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from evener.partition.layout import Layout
from evener.plan import Plan, Replica, Stage
from evener.strategy.arguments import FOUND, read_arguments
from evener.strategy.distribute import DistributedStep
from evener.strategy.ownership import OwnerRegistry
from evener.strategy.prepared import StepContext, StepRecords
from evener.strategy.shares import SharesOfWorkers
from evener.workers.group import Group
from evener.workers.mesh import Mesh, PeerLost
from exactness.steps.case import BuiltStep
from exactness.steps.runs import Run, train
from workers.seats import PATIENCE_SECONDS, Seat, Seats

_TRACING = threading.Lock()


class Died(BaseException):
    """The end of a worker, which nothing of it survives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of one worker.

    Attributes:
        worker: Number of the worker.
        step: Number of its step, from 0.
        exchange: Number of the exchange in the attempt, from 0; that behind the last exchange is
            the commit.
        kind: ``"dies"`` before the exchange; ``"dies late"``: behind it; ``"dies in a view"``: when
            it has stopped in the step for the next view; ``"dies unconnected"``: before it has
            connected with the others, which wait for it; ``"hears nothing"``: the worker lives on,
            and does not get what the others have exchanged.
        attempt: Number of the attempt of the step, from 0.
    """

    worker: int
    step: int
    exchange: int
    kind: str = "dies"
    attempt: int = 0


@dataclass(slots=True)
class Outcome:
    """Results that the workers have left.

    Attributes:
        runs: Results and variables of each worker that is alive at the end.
        num_exchanges: Exchanges in each step of the first worker, without repeated ones.
        num_retries: Calls that were made again, of all workers.
        num_spoilt: Calls of which a worker was given the rows alone that it needs.
        faults_left: Faults that no worker has come to.
    """

    runs: dict[int, Run] = field(default_factory=dict)
    num_exchanges: list[int] = field(default_factory=list)
    num_retries: int = 0
    num_spoilt: int = 0
    faults_left: list[Fault] = field(default_factory=list)


class FaultyGroup(Group):
    """Group that breaks at chosen exchanges, and compares variables before a call is repeated."""

    def __init__(self, seats: Seats, index: int, faults: Sequence[Fault]) -> None:
        self.seats = seats
        self.faults = [fault for fault in faults if fault.worker == index]
        self.compared: Sequence[Any] = ()
        self.step = -1
        self.counts: list[int] = []
        self.needed_rows: dict[int, np.ndarray] = {}
        self.num_spoilt = 0
        self.num_retries = 0
        self.is_dead = False
        self._before: list[np.ndarray] = []
        self._attempt = 0
        self._is_put_back = False
        self._count = 0
        seat: Any = Seat(seats, index)
        super().__init__(
            seats.jobs[index],
            seat,
            seats.networks[index],
            seats.views[0],
        )
        seats.when_over(index, self.end_view)
        if any(fault.kind == "dies unconnected" for fault in self.faults):
            self.die()
        if seats.is_over:
            self.end_view()
        self.connect()

    def begin_step(self) -> None:
        self.step += 1
        self.counts.append(0)
        self._attempt = self._count = 0
        self._is_put_back = False
        self._before = [np.array(variable) for variable in self.compared]

    def begin(self, handles: list[Any], *, is_repeatable: bool) -> Callable[..., None]:
        begun = super().begin(handles, is_repeatable=is_repeatable)

        def noting(needed: np.ndarray, *values: np.ndarray) -> None:
            self.needed_rows[len(needed)] = needed
            begun(needed, *values)

        return noting

    def compare(self, batch: Sequence[np.ndarray]) -> np.bool_:
        return np.True_ if self.num_spoilt else super().compare(batch)

    def die(self) -> None:
        self.is_dead = True
        self._mesh.close()
        self._network.close()
        self.seats.lose(self.index)
        raise Died

    def commit(self) -> None:
        fault = self._due()
        if fault is not None and fault.kind.startswith("dies"):
            self.die()
        super().commit()

    def _exchange(self, exchange: Callable[[Mesh], list[np.ndarray]]) -> list[np.ndarray]:
        fault = self._due()
        self._count += 1
        if not self._attempt:
            self.counts[-1] += 1
        if fault is None:
            return super()._exchange(exchange)
        if fault.kind == "dies":
            self.die()

        def broken(mesh: Mesh) -> list[np.ndarray]:
            exchange(mesh)
            if fault.kind == "dies late":
                self.die()
            mesh.abort()
            raise PeerLost("the answers are lost")

        return super()._exchange(broken)

    def _due(self) -> Fault | None:
        now = (self.step, self._attempt, self._count)
        for fault in self.faults:
            is_now = (fault.step, fault.attempt, fault.exchange) == now
            if is_now and fault.kind != "dies in a view":
                self.faults.remove(fault)
                return fault
        return None

    def _start(self, *args: Any) -> None:
        # The next attempt may end, and this worker still be needed by others.
        self._is_put_back = False
        super()._start(*args)

    def _put_back(self, error: tf.errors.OpError) -> None:
        super()._put_back(error)
        self._is_put_back = True
        self.num_retries += 1
        self._check_put_back()

    def _recover(self, view: Any) -> Any:
        self._check_put_back()
        # Also where another worker dies before this one has come to the step.
        self._attempt, self._count = self._attempt + 1, 0
        for fault in self.faults:
            if fault.kind == "dies in a view" and fault.step == self.step:
                self.faults.remove(fault)
                self.die()
        return super()._recover(view)

    def _check_put_back(self) -> None:
        if not self._is_put_back:
            return  # Only left the program: nothing is repeated.
        for variable, before in zip(self.compared, self._before, strict=True):
            now = np.array(variable)
            if now.tobytes() != before.tobytes():
                raise AssertionError(f"{variable.name} was {before}, and is {now}")


class _LockedStep(DistributedStep[..., Any]):
    """Step that is traced alone: Keras's own state while tracing is that of the process."""

    def _trace(self, *args: Any, **kwargs: Any) -> Any:
        with _TRACING:
            return super()._trace(*args, **kwargs)


def layout_of(group: Group, num_devices: Sequence[int]) -> Layout:
    """Return a layout with a replica on each device of each worker."""
    names = [f"worker:{w}/cpu:{k}" for w, count in enumerate(num_devices) for k in range(count)]
    replicas = tuple(Replica(share=1, stages=(Stage(device=name),)) for name in names)
    return Layout(replicas, group=group)


def distributed(
    group: Group, step: Any, layout: Layout, shares: Sequence[float], **axes: Any
) -> Any:
    """Return a step on several workers, as `evener.distribute` makes it."""
    controller = SharesOfWorkers(
        layout.devices, shares, measured=False, group=group, workers=layout.workers_of_replicas
    )
    if len(group.view.members) < group.count:
        controller.begin_with(controller.common_state(), group.view)
    group.keep_common(controller.common_state, controller.begin_with)
    plan = Plan.data_parallel(list(layout.devices))
    context = StepContext(
        plan=plan,
        layout=layout,
        controller=controller,
        owners=OwnerRegistry(plan, ()),
        records=StepRecords(),
        verify=False,
    )
    return _LockedStep(step, context, **axes)


def run_case(
    build: Callable[[], BuiltStep],
    *,
    num_devices: Sequence[int],
    shares: Sequence[float],
    faults: Sequence[Fault] = (),
    change_step: Callable[[Any], Any] = lambda step: step,
    spoils: bool = False,
) -> Outcome:
    def work(group: FaultyGroup, case: BuiltStep) -> Run:
        axes = {} if case.in_axes is None else {"in_axes": case.in_axes}
        layout = layout_of(group, num_devices)
        step = distributed(group, change_step(case.step), layout, shares, **axes)
        group.compared = case.variables

        def call(*arguments: Any) -> Any:
            group.begin_step()
            if spoils:
                arguments = _spoilt(group, arguments, axes.get("in_axes", FOUND))
            return step(*arguments)

        return train(case, call)

    return run_workers(work, [build() for _ in num_devices], faults=faults)


def _spoilt(group: FaultyGroup, arguments: Any, in_axes: Any) -> Any:
    """Return the arguments of a step with other values in the rows that are not needed."""
    found = read_arguments(arguments, in_axes)
    needed = group.needed_rows.get(found.num_samples or 0)
    if needed is None:
        return arguments
    group.num_spoilt += 1

    def spoil(tensor: Any, axis: int | None) -> Any:
        if axis != 0 or tensor.dtype == tf.string:
            return tensor
        rows = np.array(tensor)
        rows[~needed] = np.nan if tensor.dtype.is_floating else 0
        return tf.constant(rows)

    return found.pack([*map(spoil, found.tensors, found.axes)])


def run_workers(
    work: Callable[[FaultyGroup, Any], Any], given: Sequence[Any], *, faults: Sequence[Fault] = ()
) -> Outcome:
    outcome, problems = Outcome(), dict[int, BaseException]()
    groups: dict[int, FaultyGroup] = {}
    with _seats(len(given)) as seats:

        def run(index: int) -> None:
            try:
                group = groups[index] = FaultyGroup(seats, index, faults)
                found = work(group, given[index])
                while (view := group._member.leave(group._done, {})) is not None:
                    group._recover(view)
                outcome.runs[index] = found
            except Died:
                return
            except BaseException as error:
                if index in groups and groups[index].is_dead:
                    return
                problems[index] = error
                seats.lose(index)
                if index in groups:
                    groups[index]._mesh.close()

        threads = [
            threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(given))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(4 * PATIENCE_SECONDS)
            assert not thread.is_alive(), "a worker waits for ever"
        for group in groups.values():
            group._mesh.close()
    for index, problem in sorted(problems.items()):
        raise AssertionError(f"worker {index} failed") from problem
    first = groups[min(outcome.runs)]
    outcome.num_exchanges = first.counts
    outcome.num_spoilt = sum(group.num_spoilt for group in groups.values())
    outcome.num_retries = sum(group.num_retries for group in groups.values())
    outcome.faults_left = [fault for group in groups.values() for fault in group.faults]
    return outcome


@contextmanager
def _seats(count: int) -> Iterator[Seats]:
    seats = Seats(count)
    try:
        yield seats
    finally:
        for network in seats.networks:
            network.close()


def same_bits(runs: Mapping[int, Run]) -> bool:
    """Return whether the workers have the same bits in all results and variables."""
    flat = [[a for arrays in returned for a in arrays] + state for returned, state in runs.values()]
    return all(
        a.dtype == b.dtype and a.shape == b.shape and _bits(a) == _bits(b)
        for others in flat[1:]
        for a, b in zip(flat[0], others, strict=True)
    )


def _bits(array: np.ndarray) -> Any:
    return array.tolist() if array.dtype == object else array.tobytes()
