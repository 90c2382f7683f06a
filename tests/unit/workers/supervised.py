"""A job of small scripts, in a process that tests can kill: ``python supervised.py SETTINGS``.

Lines of standard input are workers that the coordinator gives up: index, incarnation, and 0 for
those that are killed at once, others may end by themselves; or
workers that have joined: ``joined`` and their numbers; or ``agreed``: all of them have left.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from evener.workers.messages import Ended, Event, Formed, Lost, View
from evener.workers.on_ray import RayCluster, parse_resources
from evener.workers.output import Console
from evener.workers.supervisor import LaunchSettings, Supervisor, WorkerCommand
from evener.workers.worker_process import ThisMachine


class FakeControl:
    def start(self, on_event: Callable[[Event], None]) -> None:
        def read() -> None:
            for line in sys.stdin:
                words = line.split()
                if words[0] in ("joined", "agreed"):
                    indices = tuple(map(int, words[1:]))
                    done = dict.fromkeys(indices, 7)
                    view = View(number=2, members=indices, addresses={}, done=done, joined=())
                    on_event(Formed(view=view) if indices else Ended())
                    with Path(os.environ["NEWS"]).open("a") as news:
                        print("heard", file=news)
                    continue
                index, incarnation, seconds = words
                on_event(
                    Lost(
                        index=int(index),
                        incarnation=int(incarnation),
                        why="it was silent",
                        is_fault=seconds == "0",
                    )
                )

        threading.Thread(target=read, daemon=True).start()

    def environment(self, index: int, incarnation: int, host: str) -> Mapping[str, str]:
        return {"INDEX": str(index), "INCARNATION": str(incarnation)}

    def go_without(self, index: int) -> None:
        print(f"nobody waits for worker {index}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        print("the coordinator has stopped", file=sys.stderr, flush=True)


def main() -> None:
    given = json.loads(sys.argv[1])
    scripts = given.pop("scripts")
    gone = given.pop("remove", None)
    ray, needs = (
        given.pop("ray", None),
        list(map(parse_resources, given.pop("resources", ["CPU=1"] * len(scripts)))),
    )
    settings = LaunchSettings(
        workers=tuple(
            WorkerCommand(index=index, words=[sys.executable, "-c", script])
            for index, script in enumerate(scripts)
        ),
        environ={**os.environ, "PYTHONUNBUFFERED": "1"},
        logs=Path(given.pop("logs")),
        **given,
    )
    console = Console(sys.stdout.buffer, sys.stderr.buffer)
    placement = ThisMachine() if ray is None else RayCluster(ray, needs, place_seconds=60)
    if isinstance(placement, RayCluster):
        placement.reserve(console.message)
    if gone is not None:
        Path(gone).rmdir()
    # Not at the end of the interpreter, which waits for nothing else.
    sys.exit(Supervisor(settings, FakeControl(), console, placement=placement).run())


if __name__ == "__main__":
    main()
