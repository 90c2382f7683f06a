"""Contenders that train one problem in turns, and what counts of that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from side_by_side.problems import PROBLEMS
from side_by_side.quiet import MOST_FOREIGN, Quiet
from side_by_side.workers import Worker

_LEAST_ROUNDS = 3


def take_turn(workers: Sequence[Worker], num_steps: int) -> tuple[float, float]:
    """Let one contender run.

    Returns:
        Global batches per second, added up over its processes, and core-seconds per batch.
    """
    for worker in workers:
        worker.send("run", num_steps)
    ran = [worker.receive() for worker in workers]
    rate = sum(turn.num_steps / turn.seconds for turn in ran) / len(workers)
    return rate, sum(turn.core_seconds / turn.num_steps for turn in ran)


def compare(
    teams: dict[str, list[Worker]],
    name: str,
    quiet: Quiet,
    *,
    optimizer: str,
    rounds: int,
    seconds: float,
    least_steps: int = 8,
) -> dict[str, Any]:
    """Let all contenders train one problem in turns; return their samples per second.

    Args:
        teams: Processes of each contender.
        name: Name of the problem.
        quiet: Waits for a quiet machine.
        optimizer: Name of the optimizer.
        rounds: Turns of every contender.
        seconds: Length of a turn.
        least_steps: Least number of steps in a turn, however long they take.
    """
    batch_size = PROBLEMS[name].batch_size
    everybody = [worker for team in teams.values() for worker in team]
    for worker in everybody:
        worker.send("prepare", name, optimizer)
    for worker in everybody:
        worker.receive()
    num_steps = {}
    for contender, team in teams.items():
        take_turn(team, 2)
        rate, _ = take_turn(team, min(least_steps, 5))
        num_steps[contender] = max(least_steps, math.ceil(seconds * rate))
    speeds: dict[str, list[float]] = {contender: [] for contender in teams}
    cores: dict[str, list[float]] = {contender: [] for contender in teams}
    foreign: dict[str, list[float]] = {contender: [] for contender in teams}
    order = list(teams)
    for _ in range(rounds):
        for contender in order:
            turn = quiet.turn(partial(take_turn, teams[contender], num_steps[contender]))
            rate, core_seconds = turn.result
            speeds[contender].append(rate * batch_size)
            cores[contender].append(core_seconds / batch_size)
            foreign[contender].append(round(turn.foreign, 3))
        order = order[1:] + order[:1]
    notes = {contender: team[0].call("notes") for contender, team in teams.items()}
    return {
        "samples_per_second": speeds,
        "core_seconds_per_sample": cores,
        "used_by_others": foreign,
        "steps_per_turn": num_steps,
        "notes": notes,
    }


def undisturbed(figures: dict[str, Any], *who: str) -> list[list[float]]:
    """Return the samples per second of the rounds in which nobody disturbed any of these.

    Where there are too few such rounds, all rounds are returned.
    """
    speeds, foreign = figures["samples_per_second"], figures["used_by_others"]
    rounds = range(len(speeds[who[0]]))
    kept = [k for k in rounds if all(foreign[name][k] <= MOST_FOREIGN for name in who)]
    if len(kept) < _LEAST_ROUNDS:
        kept = list(rounds)
    return [[speeds[name][k] for k in kept] for name in who]
