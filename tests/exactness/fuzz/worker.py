"""A process that tries programs, and writes a line of JSON for each."""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import tensorflow as tf

from exactness.fuzz.check import Trial, check, free_graphs
from exactness.fuzz.draw import draw_trial
from exactness.fuzz.reduce import reduce_trial
from exactness.stand_ins import make_stand_ins


def write(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def describe(trial: Trial, text: str) -> str:
    """Return a trial as Python, with what came of it."""
    whole = f", {trial.whole} not sharded" if trial.whole else ""
    xla = ", by XLA" if trial.program.by_xla else ""
    plan = f'plan "{trial.plan}", sizes {trial.sizes}, batches {trial.seed}'
    head = f"# {plan}{whole}{xla}: {text}"
    return f"{head}\n{trial.program.source()}"


def try_program(seed: str, known: list[set[str]], low_precision: float, by_xla: float) -> None:
    """Try the program of a seed, and reduce it if it has a fault that is not known."""
    write(seed=seed)
    trial = draw_trial(seed, low_precision=low_precision, by_xla=by_xla)
    verdict = check(trial)
    fields: dict[str, Any] = {
        "done": seed,
        "compared": verdict.compared,
        "shared": verdict.shared,
        "refused": verdict.refused,
        "excused": verdict.excused,
        "unraised": verdict.unraised,
        "trains": bool(trial.program.losses),
    }
    if verdict.fault is not None:
        fields["kind"] = verdict.fault.kind
        if not any(operations <= set(trial.program.operations()) for operations in known):
            smaller, fault = reduce_trial(trial, verdict.fault, tell=lambda: write(reducing=seed))
            known.append(set(smaller.program.operations()))
            fields["operations"] = smaller.program.operations()
            fields["text"] = describe(smaller, f"{fault.kind}, {fault.result} {fault.text}")
    write(**fields)


def main(seed: str, first: str, last: str, known: str, low_precision: str, by_xla: str) -> None:
    tf.get_logger().setLevel("ERROR")
    make_stand_ins()
    # As in the tests: tracing makes thousands of objects at once.
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    found = [set(operations) for operations in json.loads(known)]
    for index in range(int(first), int(last)):
        try_program(f"{seed}:{index}", found, float(low_precision), float(by_xla))
        if index % 20 == 0:
            free_graphs()


if __name__ == "__main__":
    main(*sys.argv[1:])
