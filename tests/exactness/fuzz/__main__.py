"""A campaign: programs for as long as it is told to, in processes that may die.

A data-dependent size that is wrong can be as large as memory, and a loop that counts to it endless.
So the programs run in a process of their own; if it dies, that is a fault of its last program.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

PROGRAMS_PER_PROCESS = 300
"""Graphs leave something behind: 0.2 MB each."""
SECONDS_FOR_A_PROGRAM = 300.0
"""On a busy machine a process also needs long to start."""


def run_worker(
    seed: str, first: int, known: list[list[str]], shares: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield what a process says of its programs, from the number ``first`` on."""
    arguments = [seed, str(first), str(first + PROGRAMS_PER_PROCESS), json.dumps(known), *shares]
    with subprocess.Popen(
        [sys.executable, "-m", "exactness.fuzz.worker", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            while True:
                timer = threading.Timer(SECONDS_FOR_A_PROGRAM, process.kill)
                timer.start()
                line = process.stdout.readline()
                timer.cancel()
                if not line:
                    return
                if line.startswith("{"):
                    yield json.loads(line)
        finally:
            process.kill()


class Campaign:
    """Trials of programs until a time, with the counts of their results."""

    def __init__(self, seed: str, end: float, shares: Sequence[float]) -> None:
        self.counts: Counter[str] = Counter()
        self.known: list[list[str]] = []
        self._seed = seed
        self._shares = [str(share) for share in shares]
        self._end = end
        self._begin = self._told = time.monotonic()

    def run(self) -> None:
        """Try programs until the time is over."""
        first = 0
        while time.monotonic() < self._end:
            tried, last = "", first - 1
            for line in run_worker(self._seed, first, self.known, self._shares):
                if "seed" in line:
                    tried, last = line["seed"], int(line["seed"].rpartition(":")[2])
                elif "done" in line:
                    tried = ""
                    self._count(line)
                if time.monotonic() >= self._end:
                    tried = ""
                    break
            if last < first:
                raise RuntimeError("the process that tries programs does not start")
            if tried:
                self.counts["died"] += 1
                print(f"the process died or hung in the program of seed {tried}", flush=True)
            first = last + 1

    def _count(self, line: dict[str, Any]) -> None:
        counts = self.counts
        counts["programs"] += 1
        counts["rejected"] += not line["compared"]
        counts["shared"] += line["shared"]
        counts["with gradients"] += line["trains"]
        counts["refused"] += bool(line["refused"])
        counts["rounding"] += bool(line["excused"])
        counts["failed on one device only"] += bool(line["unraised"])
        if "kind" in line:
            counts[line["kind"]] += 1
        if "text" in line:
            self.known.append(line["operations"])
            print(f"\n# seed {line['done']}\n{line['text']}\n", flush=True)
        if time.monotonic() - self._told > 60:
            self._told = time.monotonic()
            print(self.summary(), flush=True)

    def summary(self) -> str:
        seconds = time.monotonic() - self._begin
        numbers = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        return f"{seconds / 60:.1f} min: {numbers}; different faults {len(self.known)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument("--seed", default="1", help="other seeds give other programs (default: 1)")
    for name in ("low-precision", "xla"):
        parser.add_argument(f"--{name}", type=float, default=0.1, help="share (default: 0.1)")
    options = parser.parse_args()
    shares = (options.low_precision, options.xla)
    campaign = Campaign(options.seed, time.monotonic() + 60 * options.minutes, shares)
    campaign.run()
    print(campaign.summary())
    return int(bool(campaign.known or campaign.counts["died"]))


if __name__ == "__main__":
    sys.exit(main())
