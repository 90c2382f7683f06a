"""Fault campaign: jobs of several workers with faults at random moments, against one device.

    python tests/workers/campaign.py --faults 200 --seed 1

After each job: the weights and the history are those of an undisturbed device, every worker has
made every step of its life once and in order, and no process is left. It has to run as root: the
checkpoints go to a small file system of their own, and connections are cut from outside.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import errno
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

CHECKPOINT_STEPS = 25
PROGRAM = Path(__file__).with_name("steady.py")
DEVICES = ("cpu:1", "cpu:2", "cpu:1")
DATA = ("arrays", "pipeline", "loop")
EXCHANGES = ("mesh", "tensorflow")
_HEARTBEATS = (2.0, 2.0, 70.0)
"""Seconds of heartbeats, by job: a worker that is frozen for 60 s is replaced, or awaited."""
_START = 200.0
TOLERANCE = 1e-5
_LONGEST_JOB = 900.0
_LIBC = ctypes.CDLL(None, use_errno=True)
_PIDFD_GETFD = 438
_NEAR = 30
"""Number of steps that a worker may be behind the others, and still stand with them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """A fault that was made.

    Attributes:
        kind: Name of the kind.
        at: Time at which it was made.
        seconds: Seconds until another worker finished a step that it had begun after the fault;
            None if none did.
    """

    kind: str
    at: float
    seconds: float | None


class Job:
    def __init__(
        self, folder: Path, num_epochs: int, data: str, heartbeat: float, exchange: str
    ) -> None:
        folder.mkdir()
        self._folder = folder
        self.data = data
        self.result = folder / "workers.npz"
        words = [sys.executable, "-m", "evener", "launch", "--workers", str(len(DEVICES))]
        for devices in DEVICES:
            words += ["--devices", devices]
        words += ["--restarts", "10000", "--heartbeat", str(heartbeat), "--grace", "10"]
        words += ["--exchange", exchange, "--logs"]
        words += [str(folder / "logs"), str(PROGRAM), str(self.result), str(num_epochs)]
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=512k", "evener", self.checkpoints], check=True
        )
        environ = {**os.environ, "EVENER_START_SECONDS": str(_START)}
        with (folder / "output.txt").open("w") as output:
            self.process = subprocess.Popen(
                [*words, str(folder), str(self.checkpoints), data],
                env=environ,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def workers(self) -> dict[int, int]:
        """Return the process of each worker by its number; of those that run the program."""
        found: dict[int, int] = {}
        for process in Path("/proc").iterdir():
            if not process.name.isdecimal():
                continue
            try:
                words = (process / "cmdline").read_bytes().decode().split("\0")
                environ = (process / "environ").read_bytes().decode().split("\0")
            except (OSError, UnicodeDecodeError):
                continue
            job = next((line[11:] for line in environ if line.startswith("EVENER_JOB=")), None)
            if job is not None and str(self.result) in words and "run" in words:
                found[json.loads(job)["index"]] = int(process.name)
        return found

    def steps(self) -> dict[int, list[tuple[int, float]]]:
        found: dict[int, list[tuple[int, float]]] = {}
        for path in self._folder.glob("steps-*.jsonl"):
            lines = path.read_text().splitlines(keepends=True)
            whole = [json.loads(line) for line in lines if line.endswith("\n")]
            found[int(path.stem.partition("-")[2])] = [(step, at) for step, at in whole]
        return found

    def is_running(self) -> bool:
        return self.process.poll() is None


def with_state(job: Job) -> list[int]:
    """Return the processes that stand with the others, as far as their steps show."""
    last = {process: steps[-1][0] for process, steps in job.steps().items() if steps}
    alive = [process for process in job.workers().values() if process in last]
    newest = max((last[process] for process in alive), default=0)
    return [process for process in alive if last[process] >= newest - _NEAR]


def kill_one(job: Job, rng: random.Random) -> list[int]:
    return _send(signal.SIGKILL, [rng.choice(sorted(job.workers().values()))])


def kill_first(job: Job, rng: random.Random) -> list[int]:
    del rng
    workers = job.workers()
    return _send(signal.SIGKILL, [workers[0]] if 0 in workers else [])


def kill_two(job: Job, rng: random.Random) -> list[int]:
    """Kill two workers at once, if that leaves one that is as far as they."""
    workers = sorted(job.workers().values())
    if len(with_state(job)) < len(DEVICES):
        return kill_one(job, rng)
    return _send(signal.SIGKILL, rng.sample(workers, 2))


def freeze(job: Job, rng: random.Random) -> list[int]:
    """Stop a worker without ending it."""
    return _send(signal.SIGSTOP, [rng.choice(sorted(job.workers().values()))])


def freeze_for(seconds: float) -> Callable[[Job, random.Random], list[int]]:
    """Return the fault that stops a worker for some seconds."""

    def freeze_and_thaw(job: Job, rng: random.Random) -> list[int]:
        stopped = freeze(job, rng)
        timer = threading.Timer(seconds, _send, [signal.SIGCONT, stopped])
        timer.daemon = True
        timer.start()
        return stopped

    return freeze_and_thaw


def slow_down(job: Job, rng: random.Random) -> list[int]:
    """Let a worker run for a tenth of the time, for two seconds."""
    process = rng.choice(sorted(job.workers().values()))
    for _ in range(20):
        _send(signal.SIGSTOP, [process])
        time.sleep(0.09)
        _send(signal.SIGCONT, [process])
        time.sleep(0.01)
    return []


def kill_newcomer(job: Job, rng: random.Random) -> list[int]:
    young = _newcomers(job)
    return _send(signal.SIGKILL, [rng.choice(young)]) if young else kill_one(job, rng)


def freeze_newcomer(job: Job, rng: random.Random) -> list[int]:
    """Stop a worker that is about to join, if there is one."""
    young = _newcomers(job)
    return _send(signal.SIGSTOP, [rng.choice(young)]) if young else freeze(job, rng)


def _newcomers(job: Job) -> list[int]:
    grown = job.steps()
    return sorted(process for process in job.workers().values() if not grown.get(process))


def cut_links(job: Job, rng: random.Random) -> list[int]:
    process = rng.choice(sorted(job.workers().values()))
    for connection in _connections(process):
        _cut(connection)
        connection.close()
    return [process]


def cut_one_link(job: Job, rng: random.Random) -> list[int]:
    process = rng.choice(sorted(job.workers().values()))
    connections = _connections(process)
    if connections:
        _cut(rng.choice(connections))
    for connection in connections:
        connection.close()
    return [process]


def _cut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:  # It has ended by itself.
            raise


def fill_disk(job: Job, rng: random.Random) -> list[int]:
    """Leave no room for checkpoints, for some seconds."""
    filling = job.checkpoints / "filling"
    try:
        with filling.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    time.sleep(rng.uniform(0.5, 3.0))
    filling.unlink()
    return []


KINDS: dict[str, Callable[[Job, random.Random], list[int]]] = {
    "killed": kill_one,
    "killed worker 0": kill_first,
    "two killed": kill_two,
    "frozen": freeze,
    "frozen for 5 s": freeze_for(5.0),
    "frozen for 60 s": freeze_for(60.0),
    "slowed": slow_down,
    "killed while joining": kill_newcomer,
    "frozen while joining": freeze_newcomer,
    "all links cut": cut_links,
    "a link cut": cut_one_link,
    "disk full": fill_disk,
}


def _connections(process: int) -> list[socket.socket]:
    """Return the TCP connections of a process, as those of this one too."""
    found = []
    try:
        number = os.pidfd_open(process)
        links = [
            (int(path.name), str(path.readlink())) for path in Path(f"/proc/{process}/fd").iterdir()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return found
    for descriptor, link in links:
        copy = _LIBC.syscall(_PIDFD_GETFD, number, descriptor, 0) if "socket:" in link else -1
        if copy < 0:
            continue
        connection = socket.socket(fileno=copy)
        try:
            is_connected = connection.family == socket.AF_INET and connection.getpeername()
        except OSError:
            is_connected = False
        if is_connected:
            found.append(connection)
        else:
            connection.close()
    os.close(number)
    return found


def _send(number: int, processes: list[int]) -> list[int]:
    sent = []
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue
        sent.append(process)
    return sent


def disturb(job: Job, rng: random.Random, num_faults: int) -> Iterator[Fault]:
    """Make faults at random moments, while a worker that has trained lives beside."""
    made = 0
    while job.is_running() and made < num_faults:
        time.sleep(rng.uniform(0.5, 4.0))
        trained = with_state(job)
        # Nobody can take over from the last one.
        if len(trained) < 2 or not job.is_running():
            continue
        kind = rng.choice(sorted(KINDS))
        at = time.time()
        gone = KINDS[kind](job, rng)
        made += 1
        yield Fault(kind, at, _next_step(job, at, gone))


def _next_step(job: Job, at: float, gone: list[int]) -> float | None:
    """Wait for a step that another worker begins and finishes; return the seconds until its end.

    The first step that ends may have had all sums before the fault.
    """
    while job.is_running():
        seconds = []
        for process, steps in job.steps().items():
            ends = [end - at for _, end in steps if end > at]
            if process not in gone and len(ends) > 1:
                seconds.append(ends[1])
        if seconds:
            return min(seconds)
        time.sleep(0.05)
    return None


def check(job: Job, expected: list[np.ndarray]) -> float:
    """Check a job that has ended; return its largest difference from one device."""
    output = (job.result.parent / "output.txt").read_text()
    assert job.process.returncode == 0, output[-4000:]
    found = list(np.load(job.result).values())
    difference = largest_difference(found, expected)
    assert difference < TOLERANCE, (difference, output[-4000:])
    if job.data != "loop":
        rows = Path(f"{job.result}.csv").read_text().splitlines()[1:]
        assert [int(row.partition(",")[0]) for row in rows] == list(range(len(found[-1])))
    for process, steps in job.steps().items():
        numbers = [step for step, _ in steps]
        # If nobody is left who has trained, the job begins at its newest checkpoint.
        first = numbers[0] if numbers else 0
        assert first % CHECKPOINT_STEPS == 0, (process, first)
        assert numbers == list(range(first, first + len(numbers))), (process, numbers[:20])
    assert not job.workers()
    return difference


def largest_difference(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    return max(
        float(np.abs(a - b).max() / max(1.0, np.abs(b).max()))
        for a, b in zip(found, expected, strict=True)
    )


def one_device(
    folder: Path, num_epochs: int, data: str, *, has_checkpoints: bool = True
) -> list[np.ndarray]:
    """Return what an undisturbed device gives; with checkpoints, batches have another order."""
    words = ["-m", "evener", "run", "--devices", "cpu:1", "--shares", "even"]
    file = folder / f"{data}.npz"
    steps = folder / data
    steps.mkdir()
    checkpoints = str(steps / "checkpoints") if has_checkpoints else ""
    arguments = [str(file), str(num_epochs), str(steps), checkpoints, data]
    subprocess.run([sys.executable, *words, str(PROGRAM), *arguments], check=True)
    return list(np.load(file).values())


def run_job(
    job: Job, num_faults: int, rng: random.Random, expected: list[np.ndarray]
) -> tuple[list[Fault], float]:
    faults: list[Fault] = []
    try:
        for fault in disturb(job, rng, num_faults):
            faults.append(fault)
            print(f"  {fault.kind}: next step after {fault.seconds} s", flush=True)
        job.process.wait(timeout=_LONGEST_JOB)
        return faults, check(job, expected)
    finally:
        job.process.kill()
        job.process.wait()
        subprocess.run(["umount", "--lazy", job.checkpoints], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fault campaign of several workers.")
    parser.add_argument("--faults", type=int, default=200, help="number of faults in all")
    parser.add_argument("--epochs", type=int, default=600, help="epochs of each job")
    parser.add_argument("--seed", type=int, default=1, help="seed of the moments and kinds")
    parser.add_argument("--exchange", choices=EXCHANGES, help="carrier (default: by turns)")
    parser.add_argument("--data", choices=DATA, help="program (default: by turns)")
    options = parser.parse_args()
    kinds = (options.data,) if options.data else DATA
    carriers = (options.exchange,) if options.exchange else EXCHANGES
    rng = random.Random(options.seed)
    faults: list[Fault] = []
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = {data: one_device(folder, options.epochs, data) for data in kinds}
        number = 0
        while len(faults) < options.faults:
            data = kinds[number % len(kinds)]
            exchange = carriers[number // len(kinds) % len(carriers)]
            number += 1
            # All three with each program and each carrier, in time.
            heartbeat = _HEARTBEATS[(number + number // 3) % 3]
            job = Job(folder / f"job{number}", options.epochs, data, heartbeat, exchange)
            made, difference = run_job(job, options.faults - len(faults), rng, expected[data])
            faults += made
            worst = max(worst, difference)
            ended = f"{len(made)} faults, {difference:.1e} from one device"
            print(f"job {number}, {data}, {exchange}: {ended}", flush=True)
    print(f"{len(faults)} faults in {number} jobs, at most {worst:.1e} from one device")
    for kind in sorted(KINDS):
        seconds = sorted(f.seconds for f in faults if f.kind == kind and f.seconds is not None)
        if seconds:
            print(
                f"{kind:22} {len(seconds):4} faults, seconds to the next step: median "
                f"{statistics.median(seconds):.2f}, most {seconds[-1]:.2f}"
            )


if __name__ == "__main__":
    main()
