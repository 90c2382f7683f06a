"""Faults of cables: jobs on machines that are namespaces, against one device.

    python tests/machines/campaign.py --faults 60 --seed 1

Each machine runs one command, as under a scheduler, which starts a worker again that has ended.
After each job, weights and history are those of an undisturbed device. It needs root.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from machines.namespaces import Machine, machines, missing
from workers.campaign import PROGRAM, TOLERANCE, largest_difference, one_device

_PORT = 4711
_HEARTBEAT = 4.0
_REST_SECONDS = 20.0
"""Time that the others have to end after the first worker has come to the end."""
_LONGEST_JOB = 900.0


class Job:
    """A job with one worker on each machine, and the scheduler that starts them again."""

    def __init__(self, made: list[Machine], folder: Path, num_epochs: int, exchange: str) -> None:
        self.machines = made
        self.folder = folder
        self._num_epochs = num_epochs
        self._is_over = False
        self._cluster = {"worker": [f"{machine.address}:{_PORT}" for machine in made]}
        self._environ = {
            **os.environ,
            "EVENER_JOB_SECRET": secrets.token_hex(32),
            "EVENER_HEARTBEAT_SECONDS": str(_HEARTBEAT),
            "EVENER_EXCHANGE": exchange,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self.num_starts = [0] * len(made)
        self.codes: list[int | None] = [None] * len(made)
        self._threads = [
            threading.Thread(target=self._serve, args=[machine], daemon=True) for machine in made
        ]
        for thread in self._threads:
            thread.start()

    def result(self, machine: Machine) -> Path:
        """Return the file for the weights of a worker."""
        return self.folder / str(machine.number) / "result.npz"

    def _serve(self, machine: Machine) -> None:
        """Run the worker of a machine until it ends with 0, or too often."""
        own = self.result(machine).parent
        own.mkdir(exist_ok=True)
        # A job in which a worker has come to the end has succeeded.
        while not (self._is_over or 0 in self.codes or self.num_starts[machine.number] == 30):
            task = {"type": "worker", "index": machine.number}
            config = {"cluster": self._cluster, "task": task}
            environ = {
                **self._environ,
                "TF_CONFIG": json.dumps(config),
                "EVENER_INCARNATION": str(self.num_starts[machine.number]),
            }
            words = [sys.executable, "-m", "evener", "launch", "--devices", "cpu:1", "--shares"]
            words += ["even", str(PROGRAM), str(self.result(machine))]
            words += [str(self._num_epochs), str(own)]
            self.num_starts[machine.number] += 1
            output = self.folder / f"{machine.name}.txt"
            process = machine.start(words, environ=environ, output=output)
            left = _REST_SECONDS
            while left > 0 and process.poll() is None and not self._is_over:
                time.sleep(0.2)
                left -= 0.2 * (0 in self.codes)
            # One that looks for a coordinator that has ended, as a scheduler ends it.
            process.kill()
            code = process.wait()
            self.codes[machine.number] = code if left > 0 else 75
            time.sleep(0.5)

    def end(self) -> None:
        """End what still runs."""
        self._is_over = True
        for thread in self._threads:
            thread.join()

    def is_running(self) -> bool:
        """Return whether a worker runs."""
        return any(thread.is_alive() for thread in self._threads)

    def num_steps(self, machine: Machine) -> int:
        """Return the number of the newest step that a worker has finished, over all its lives."""
        last = -1
        for path in self.result(machine).parent.glob("steps-*.jsonl"):
            lines = [
                line for line in path.read_text().splitlines(keepends=True) if line[-1:] == "\n"
            ]
            last = max(last, json.loads(lines[-1])[0] if lines else -1)
        return last

    def check(self, expected: list[np.ndarray]) -> float:
        """Return the largest difference of a machine's result from one device."""
        outputs = {path.name: path.read_text()[-3000:] for path in self.folder.glob("*.txt")}
        assert set(self.codes) <= {0, 75}, (self.codes, outputs)
        assert 0 in self.codes, (self.codes, outputs)
        # Files are written once, by the worker that is the chief at the end.
        files = [self.result(machine) for machine in self.machines]
        written = [path for path in files if path.exists()]
        assert written, outputs
        worst = max(largest_difference(list(np.load(path).values()), expected) for path in written)
        assert worst < TOLERANCE, (worst, outputs)
        return worst


Change = Callable[[Machine], None]
KINDS: dict[str, tuple[Change, float, Change]] = {
    **{
        f"unplugged for {seconds:g} s": (
            lambda machine: machine.plug(is_in=False),
            seconds,
            lambda machine: machine.plug(is_in=True),
        )
        for seconds in (1.0, 10.0, 90.0)
    },
    **{
        f"deaf for {seconds:g} s": (Machine.hear_nothing, seconds, Machine.limit)
        for seconds in (2.0, 12.0)
    },
    **{
        f"{megabits:g} Mb/s for {seconds:g} s": (
            functools.partial(Machine.limit, megabits=megabits),
            seconds,
            Machine.limit,
        )
        for megabits, seconds in ((10.0, 10.0), (1.0, 5.0))
    },
}
"""What begins a fault, its seconds, and what ends it."""


def run_job(
    made: list[Machine],
    folder: Path,
    num_epochs: int,
    exchange: str,
    kinds: list[str],
    rng: random.Random,
    expected: list[np.ndarray],
) -> tuple[list[str], float]:
    """Run a job with faults in this order; return those made, and the difference."""
    folder.mkdir()
    job = Job(made, folder, num_epochs, exchange)
    done: list[str] = []
    try:
        for kind in kinds:
            before = max(map(job.num_steps, made))
            while job.is_running() and max(map(job.num_steps, made)) < before + 20:
                time.sleep(0.2)
            if not job.is_running():
                break
            time.sleep(rng.random())
            machine = rng.choice(made)
            begin, seconds, end = KINDS[kind]
            begin(machine)
            time.sleep(seconds)
            end(machine)
            done.append(kind)
            print(f"  {kind} at machine {machine.number}, behind step {before + 20}", flush=True)
        deadline = time.monotonic() + _LONGEST_JOB
        while job.is_running() and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        job.end()
    return done, job.check(expected)


def main() -> None:
    """Run jobs until enough faults were made."""
    parser = argparse.ArgumentParser(description="Faults of cables between machines.")
    parser.add_argument("--faults", type=int, default=60, help="number of faults in all")
    parser.add_argument("--epochs", type=int, default=300, help="epochs of each job")
    parser.add_argument("--seed", type=int, default=1, help="seed of the kinds and machines")
    options = parser.parse_args()
    if missing():
        raise SystemExit(missing())
    rng = random.Random(options.seed)
    num_faults, number, worst = 0, 0, 0.0
    with tempfile.TemporaryDirectory() as name, machines(3, cores=[1.0, 0.5, 0.5]) as made:
        folder = Path(name)
        expected = one_device(folder, options.epochs, "arrays", has_checkpoints=False)
        while num_faults < options.faults:
            exchange = ("mesh", "tensorflow")[number % 2]
            number += 1
            begin = time.monotonic()
            kinds = [rng.choice(sorted(KINDS)) for _ in range(options.faults - num_faults)][:6]
            given = options.epochs, exchange, kinds, rng, expected
            done, difference = run_job(made, folder / f"job{number}", *given)
            if not done:
                raise SystemExit("No fault was made: more --epochs.")
            num_faults += len(done)
            worst = max(worst, difference)
            print(
                f"job {number}, {exchange}: {len(done)} faults, {difference:.1e} from one device, "
                f"{time.monotonic() - begin:.0f} s",
                flush=True,
            )
    print(f"{num_faults} faults in {number} jobs: at most {worst:.1e} from one device")


if __name__ == "__main__":
    main()
