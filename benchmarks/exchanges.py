"""A sum over two workers of one machine: by sockets, and by reading each other's memory, in turns.

    python benchmarks/exchanges.py --rounds 3

Both add four arrays of 4 MiB, as a step does with 4 million gradients. CPU time is that of one of
the two processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import time
from typing import Any

import numpy as np

from evener.workers.mesh import Mesh

NUM_BUCKETS, BUCKET_SHAPE = 4, (1024, 1024)
WARM_UP = 5


def work(index: int, port: int, num_sums: int, reads: bool, results: Any) -> None:
    """Add up as one of two workers, and hand over the milliseconds of a sum."""
    if index == 0:
        with socket.create_server(("127.0.0.1", port)) as server:
            results.put(server.getsockname()[1])
            connection, _ = server.accept()
    else:
        connection = socket.create_connection(("127.0.0.1", port))
    mesh = Mesh(index, {1 - index: connection}, patience_seconds=60.0)
    if reads:
        mesh.find_readers()
    arrays = [np.ones(BUCKET_SHAPE, np.float32)]
    cpu, wall = [], []
    for _ in range(WARM_UP + num_sums):
        cpu_begin, begin = time.process_time(), time.perf_counter()
        for bucket in range(NUM_BUCKETS):
            mesh.reduce(f"bucket {bucket}", arrays, "sum")
        cpu.append(1e3 * (time.process_time() - cpu_begin))
        wall.append(1e3 * (time.perf_counter() - begin))
    if index == 0:
        results.put((statistics.median(cpu[WARM_UP:]), statistics.median(wall[WARM_UP:])))


def measure(reads: bool, num_sums: int) -> tuple[float, float]:
    """Return the CPU and wall milliseconds of a sum."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    first = context.Process(target=work, args=(0, 0, num_sums, reads, results))
    first.start()
    second = context.Process(target=work, args=(1, results.get(timeout=60), num_sums, reads, None))
    second.start()
    found = results.get(timeout=600)
    first.join()
    second.join()
    return found


def main() -> None:
    """Measure both ways in turns, and print the medians of the rounds."""
    parser = argparse.ArgumentParser(description="A sum of 16 MiB over two workers.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sums", type=int, default=60, help="sums to time in a round")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {"sockets": [], "memory": []}
    for _ in range(options.rounds):
        for way, times in found.items():
            times.append(measure(way == "memory", options.sums))
    for way, times in found.items():
        cpu, wall = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{way:8} {cpu:6.2f} ms of CPU, {wall:6.2f} ms")


if __name__ == "__main__":
    main()
