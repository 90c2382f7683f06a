"""Workers on the nodes of a Ray cluster.

The command asks Ray for places for all workers together, and starts an actor in each; the actor
runs the process of a worker on its node, and the command follows it to its end. Ray itself is
imported when a job asks for it.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evener.errors import EvenerError, RunError
from evener.workers.connections import start_thread
from evener.workers.job import split_address
from evener.workers.output import Source, Stream
from evener.workers.supervisor import OF_OTHER_JOBS, OutputSink, WorkerStart
from evener.workers.worker_process import Guard, WorkerProcess

_ALWAYS_SENT = ("EVENER_", "KERAS_", "NCCL_", "PYTHON", "TF_", "XLA_")
_OF_MACHINE = ("CUDA_", "GPU_DEVICE_ORDINAL", "HIP_", "NVIDIA_", "RAY_", "ROCR_")
NUM_THREADS = 4
"""Threads of an actor: one that reads, one that sends signals, and two for what comes late."""
_NODE_POLL_SECONDS = 5.0
_NUM_WAITING = 4096
"""Lines that wait to be read; then the process waits too, as for any pipe."""
_MOST_LINES = 256
_POLL_SECONDS = 0.5
_KILL_SECONDS = 5.0
"""Time for an actor to report the end of a process that was killed; then the actor is killed."""
_SPOKEN_AFTER_SECONDS = 5.0
_ONE_CPU = {"CPU": 1.0, "GPU": 0.0}
_CONNECT_SECONDS = 10.0


def wrong_resources(text: str, why: str) -> RunError:
    """Return the error for resources that cannot be read; ``why`` is a clause."""
    return RunError(
        "RUN-089",
        f"--ray-resources {text}: no resources of a worker.",
        why=f"{why}.",
        fix="Write for example --ray-resources CPU=4,GPU=1, once, or once per worker.",
    )


def wrong_options(what: str, why: str, fix: str) -> RunError:
    """Return the error for options that do not fit to each other, from three sentences."""
    return RunError("RUN-084", what, why=why, fix=fix)


def not_started(host: str, why: str) -> RunError:
    return RunError(
        "RUN-088",
        f"The worker cannot be started on the node {host}.",
        why=f"{why}.",
        fix="Every node needs the working directory of the command under the same path, and the "
        "same versions of Python, Ray and evener.",
    )


def reason(error: BaseException) -> str:
    r"""Return the last sentence of an error of Ray, which has many lines, without its end.

    >>> reason(ValueError("The actor died.\n\tpid: 7\nThe node has failed."))
    'The node has failed'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__


Resources = Mapping[str, float]
"""Quantities, each above 0, by the names that Ray gives them: CPU and GPU first."""


def parse_resources(text: str) -> Resources:
    """Return the resources that a text lists; one CPU if it does not name CPU.

    >>> parse_resources("GPU=2,fast_disk=1")
    {'CPU': 1.0, 'GPU': 2.0, 'fast_disk': 1.0}
    """
    found: dict[str, float] = {}
    for item in text.split(","):
        name, equals, number = (part.strip() for part in item.partition("="))
        try:
            quantity = float(number)
        except ValueError:
            quantity = math.nan
        if not (name and equals and math.isfinite(quantity) and quantity >= 0):
            raise wrong_resources(text, f"{item.strip()!r} is not NAME=NUMBER")
        if name in found:
            raise wrong_resources(text, f"{name} is there twice")
        # As Ray demands it: larger quantities of devices cannot be parted.
        if quantity > 1 and quantity != int(quantity):
            raise wrong_resources(text, f"{quantity:g} is above 1 and no whole number")
        for known in ("CPU", "GPU"):
            if name.upper() == known and name != known:
                raise wrong_resources(text, f"Ray writes {known}, not {name}")
        found[name] = quantity
    needs = {name: number for name, number in {**_ONE_CPU, **found}.items() if number}
    if not needs:
        raise wrong_resources(text, "all are 0, so every worker fits everywhere")
    return needs


def resources_of(
    texts: Sequence[str], num_workers: int, num_gpus: Sequence[int]
) -> tuple[Resources, ...]:
    """Return the resources of every worker, from no text, one for all workers, or one for each.

    ``num_gpus`` has the GPUs that the devices of a worker are among: one number for all workers, or
    one for each. They are asked for where there is no text.
    """
    if len(texts) not in (0, 1, num_workers):
        raise wrong_resources(
            " ".join(texts), f"given {len(texts)} times for {num_workers} workers"
        )
    found = [parse_resources(text) for text in texts]
    found = found or [parse_resources(f"GPU={number}") for number in num_gpus]
    return tuple(found if len(found) == num_workers else found * num_workers)


def lacking(needs: Iterable[Resources], there: Mapping[str, float]) -> str:
    """Return the clause that says what a whole cluster lacks, or an empty one.

    >>> lacking([{"CPU": 1, "GPU": 1}] * 2, {"CPU": 4.0})
    'they need 2 GPU in all, and the cluster has 0'
    """
    total: Counter[str] = Counter()
    for need in needs:
        total.update(need)
    missing = [
        f"they need {number:g} {name} in all, and the cluster has {there.get(name, 0.0):g}"
        for name, number in total.items()
        if number > there.get(name, 0.0)
    ]
    return "; ".join(missing)


def node_environ(
    node: Mapping[str, str], sent: Mapping[str, str], gpus: Sequence[str]
) -> dict[str, str]:
    """Return the environment of a worker, whose GPUs are those that Ray has given it.

    A node has paths of its own, so its variables stay. Variables that it does not have, and those
    that evener, Keras, Python, TensorFlow and XLA read, are those of the command.

    >>> node_environ({"A": "node", "TF_A": "node"}, {"A": "sent", "B": "sent", "TF_A": "sent"}, "0")
    {'A': 'node', 'TF_A': 'sent', 'B': 'sent', 'CUDA_VISIBLE_DEVICES': '0'}
    """
    own = {name: text for name, text in node.items() if name not in OF_OTHER_JOBS}
    if own.get("PYTHONBREAKPOINT", "").startswith("ray."):
        # It is for Ray's own process.
        del own["PYTHONBREAKPOINT"]
    added = {
        name: text
        for name, text in sent.items()
        if name.startswith(_ALWAYS_SENT) or (name not in own and not name.startswith(_OF_MACHINE))
    }
    # Ray leaves it alone where a worker has no GPU: it would see those of all others.
    return {**own, **added, "CUDA_VISIBLE_DEVICES": ",".join(gpus) or "-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputBatch:
    lines: tuple[tuple[Stream, bytes], ...]  # Lines, each with its stream.
    code: int | None = None  # Exit code, if the process has ended and no line follows.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    host: str  # Address under which other nodes reach the node.
    gpus: tuple[str, ...] = ()  # GPUs of the actor, as ``CUDA_VISIBLE_DEVICES`` names them.


def place_of_ray() -> NodePlace:
    ray: Any = importlib.import_module("ray")
    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return NodePlace(host=ray.util.get_node_ip_address(), gpus=tuple(map(str, gpus)))


class NodeWorker:
    """Process of a worker, with its output in a queue. Its methods may be called in any thread."""

    def __init__(self, place: Callable[[], NodePlace] = place_of_ray) -> None:
        self._place = place
        self._queue: queue.Queue[tuple[Stream, bytes] | int] = queue.Queue(_NUM_WAITING)
        self._process: Future[WorkerProcess] = Future()
        self._reading = threading.Lock()
        self._number = 0
        self._batch = OutputBatch(lines=())

    def host(self) -> str:
        return self._place().host

    def start(
        self, source: Source, arguments: Sequence[str], sent: Mapping[str, str], folder: str
    ) -> int:
        """Start this node's Python, and return the number of its process."""
        place = self._place()
        environ = node_environ(os.environ, sent, place.gpus)

        def run() -> None:
            # The kernel kills a process with the thread that has started it.
            with contextlib.ExitStack() as stack:
                try:
                    guard = Guard(is_orphan=True)
                    stack.callback(guard.stop)
                    process = WorkerProcess(
                        source,
                        (sys.executable, *arguments),
                        environ=environ,
                        folder=folder,
                        output=_QueueOutput(self._queue),
                        guard=guard,
                        on_end=self._queue.put,
                    )
                except Exception as error:
                    self._process.set_exception(error)
                else:
                    self._process.set_result(process)
                    process.join()

        if not Path(folder).is_dir():
            raise not_started(place.host, f"it has no folder {folder}")
        start_thread("evener-worker", run)
        try:
            return self._process.result().pid
        except Exception as error:
            raise not_started(place.host, str(error)) from None

    def read(self, number: int) -> OutputBatch:
        """Return a batch of output, or an empty one after some seconds."""
        with self._reading:
            if number != self._number:
                self._number, self._batch = number, self._next()
            return self._batch

    def send(self, number: int) -> None:
        """Send a signal to the process, but not to those that it has started."""
        self._process.result().send(number)

    def kill(self) -> None:
        self._process.result().kill()

    def _next(self) -> OutputBatch:
        lines: list[tuple[Stream, bytes]] = []
        with contextlib.suppress(queue.Empty):
            found = self._queue.get(timeout=_NODE_POLL_SECONDS)
            while not isinstance(found, int):
                lines.append(found)
                if len(lines) == _MOST_LINES:
                    break
                found = self._queue.get_nowait()
            else:
                return OutputBatch(lines=tuple(lines), code=found)
        return OutputBatch(lines=tuple(lines))


class _QueueOutput(OutputSink):
    """Puts the lines of a process into a queue; the driver notes its start and its exit code."""

    def __init__(self, lines: queue.Queue[tuple[Stream, bytes] | int]) -> None:
        self._lines = lines

    def line(self, stream: Stream, line: bytes) -> None:
        self._lines.put((stream, line))


class _GivenUp(Exception):
    """The worker is not waited for any more."""


class RayWorker:
    """Follows the actor of a worker to its end, in a thread."""

    def __init__(
        self, start: WorkerStart, ray: Any, actor: Any, *, folder: str, place_seconds: float
    ) -> None:
        self.source = start.source  # Number and incarnation of the worker.
        self._start, self._ray, self._actor = start, ray, actor
        self._folder, self._place_seconds = folder, place_seconds
        self._changed = threading.Condition()
        self._is_placed = False
        self._give_up_at: float | None = None
        self._code = -int(signal.SIGKILL)
        self._thread = start_thread(f"evener-worker-{start.source[0]}", self._run)

    def send(self, number: int) -> None:
        with self._changed:
            if not self._is_placed:
                self._code = -number
                self._give_up(0.0)
                return
        self._actor.send.remote(number)

    def kill(self) -> None:
        with self._changed:
            self._give_up(_KILL_SECONDS if self._is_placed else 0.0)
            if not self._is_placed:
                return
        self._actor.kill.remote()

    def join(self) -> None:
        self._thread.join()

    def _give_up(self, seconds: float) -> None:
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + seconds
            self._changed.notify_all()

    def _run(self) -> None:
        code, why = self._followed()
        # Whatever was left is over with the actor; its resources are free for the replacement.
        self._ray.kill(self._actor)
        self._start.output.close()
        self._start.on_end(code, why)

    def _followed(self) -> tuple[int, str]:
        """Return the exit code of the worker, and a clause if the code does not say all."""
        try:
            return self._read_all(), ""
        except _GivenUp:
            return self._code, ""
        except TimeoutError:
            return self._code, f"was not placed by Ray within {self._place_seconds:g} seconds"
        except self._ray.exceptions.RayActorError as error:
            if self._is_placed:
                return self._code, f"was lost with its Ray actor ({reason(error)})"
            return self._failed(not_started("that Ray has chosen", reason(error))), ""
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if not isinstance(cause, EvenerError):
                cause = not_started("that Ray has chosen", reason(error))
            return self._failed(cause), ""
        except self._ray.exceptions.RayError as error:
            return self._code, f"was lost by Ray ({reason(error)})"

    def _read_all(self) -> int:
        start, actor = self._start, self._actor
        host: str = self._get(actor.host.remote(), self._place_seconds)
        with self._changed:
            if self._give_up_at is not None:
                raise _GivenUp
            self._is_placed = True
        # Arguments of a method go to the actor alone. Those of its class, and the variables of its
        # environment, are kept by Ray and shown in its dashboard: they are no place for a secret.
        sent = dict(start.environ(host))
        pid = self._get(
            actor.start.remote(start.source, tuple(start.words[1:]), sent, self._folder)
        )
        start.output.begin(f"process {pid} on {host}")
        number = 1
        while True:
            batch = self._batch(number)
            for stream, line in batch.lines:
                start.output.line(stream, line)
            if batch.code is not None:
                return batch.code
            number += 1

    def _batch(self, number: int) -> OutputBatch:
        while True:
            try:
                return self._get(self._actor.read.remote(number))
            except self._ray.exceptions.ActorUnavailableError:
                # The network is cut for now. Ray tells when the actor is dead.
                with self._changed:
                    if self._changed.wait_for(lambda: self._give_up_at is not None, _POLL_SECONDS):
                        raise _GivenUp from None

    def _get(self, answer: Any, seconds: float | None = None) -> Any:
        """Return the result of a call of the actor; TimeoutError if it takes longer."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._ray.wait([answer], timeout=_POLL_SECONDS)[0]:
            now = time.monotonic()
            if self._give_up_at is not None and now >= self._give_up_at:
                raise _GivenUp
            if deadline is not None and now >= deadline:
                raise TimeoutError
        return self._ray.get(answer)

    def _failed(self, error: EvenerError) -> int:
        """Show an error as that of the worker, and return its exit code."""
        for line in str(error).splitlines():
            self._start.output.line("stderr", f"{line}\n".encode())
        return 1


def load_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise RunError(
            "RUN-085",
            "Ray is not installed.",
            why="--ray starts the workers on a Ray cluster, and this Python has no package ray.",
            fix="pip install evener[ray], on every node of the cluster too.",
        ) from None


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
            if address != "auto":
                with socket.create_connection(
                    split_address(address, "--ray"), timeout=_CONNECT_SECONDS
                ):
                    pass
            # What actors print is of no interest: workers are processes of their own.
            self._ray.init(address=address, log_to_driver=False, logging_level="warning")
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            cluster = "No Ray cluster" if address == "auto" else f"No Ray cluster at {address}"
            raise RunError(
                "RUN-086",
                f"{cluster} can be joined.",
                why=f"{reason(error)}.",
                fix="Run the command on a node of the cluster, with the same versions of Ray and "
                "Python; `ray start --head` starts a cluster, and prints its address.",
            ) from error

    @property
    def host(self) -> str:
        return self._ray.util.get_node_ip_address()

    def reserve(self, tell: Callable[[str], None]) -> None:
        """Wait until Ray has places for all workers; RUN-087 if there are none in time."""
        bundles = [*map(dict, self._needs)]
        self._group = self._ray.util.placement_group(bundles, strategy="SPREAD")
        begin = time.monotonic()
        if self._is_reserved(begin + min(_SPOKEN_AFTER_SECONDS, self._place_seconds)):
            return
        tell(f"waiting for places of Ray: {self._described()}; {self._lacking()}")
        if not self._is_reserved(begin + self._place_seconds):
            raise RunError(
                "RUN-087",
                f"Ray has found no place for the workers within {self._place_seconds:g} seconds: "
                f"{self._described()}.",
                why=f"{self._lacking()}.",
                fix="Add nodes, end other jobs, or ask for less by --workers and --ray-resources; "
                "EVENER_START_SECONDS sets the time.",
            )

    def _is_reserved(self, deadline: float) -> bool:
        """Wait until a time for all places, and return whether they are there."""
        while (left := deadline - time.monotonic()) > 0:
            # Python handles signals between two calls alone.
            if self._group.wait(min(left, _POLL_SECONDS)):
                return True
        return self._group.wait(0)

    def start(self, start: WorkerStart) -> RayWorker:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        place = strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=start.source[0]
        )
        others = dict(self._needs[start.source[0]])
        num_cpus, num_gpus = others.pop("CPU", 0.0), others.pop("GPU", 0.0)
        remote = self._ray.remote(num_cpus=num_cpus, num_gpus=num_gpus, resources=others)
        actor = (
            remote(NodeWorker)
            .options(scheduling_strategy=place, max_concurrency=NUM_THREADS, max_restarts=0)
            .remote()
        )
        return RayWorker(
            start, self._ray, actor, folder=self._folder, place_seconds=self._place_seconds
        )

    def stop(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)
        self._ray.shutdown()

    def _described(self) -> str:
        counts = Counter(
            ",".join(f"{name}={number:g}" for name, number in need.items()) for need in self._needs
        )
        return ", ".join(f"{count} workers with {needs}" for needs, count in counts.items())

    def _lacking(self) -> str:
        lacks = lacking(self._needs, self._ray.cluster_resources())
        free = self._ray.available_resources()
        parts = (f"{free.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))
        return lacks or f"of all nodes, {' and '.join(parts)} are free"
