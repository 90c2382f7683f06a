"""Errors of the membership of a job, and their form in messages."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evener.errors import RunError, listed
from evener.workers.messages import Hello, ViewOver

EXIT_CODE_OF_LOST = 75
"""Exit code of a worker that lost the others, and may be started again: EX_TEMPFAIL of sysexits."""
_MOST_NAMES = 8
_ROUNDING = 1e-5
"""Difference, relative to the norm of a variable, that workers of unlike devices may come to."""

Summary = Mapping[str, Sequence[float]]
"""Checksum, projection on a fixed direction, and norm of each variable of a worker, by name."""
_CODES_OF_LOST = frozenset({"RUN-061", "RUN-067", "RUN-071", "RUN-072", "RUN-095"})


def is_lost(error: BaseException) -> bool:
    """Return whether an error says that this worker lost the others: no error of the program."""
    return isinstance(error, RunError) and error.code in _CODES_OF_LOST


def workers(indices: Iterable[int]) -> str:
    """Return the names of workers, as the subject of a sentence with a verb in the singular.

    >>> workers([2]), workers([2, 0])
    ('Worker 2', 'Each of the workers 0, 2')
    """
    names = [str(index) for index in sorted(indices)]
    if len(names) == 1:
        return f"Worker {names[0]}"
    return f"Each of the workers {listed(names, _MOST_NAMES)}"


def to_json(error: RunError) -> dict[str, str]:
    return {"code": error.code, "what": error.what, "why": error.why, "fix": error.fix}


def from_json(value: Mapping[str, Any]) -> RunError:
    kind = ViewOver if value["code"] == "RUN-070" else RunError
    return kind(**value)


def difference(first: Hello, second: Hello) -> RunError | None:
    """Return the error for the first fact, by name, that differs between two workers."""
    ours, theirs = (dict(hello.facts.get("same") or {}) for hello in (first, second))
    for fact in sorted(ours.keys() | theirs.keys()):
        if ours.get(fact) != theirs.get(fact):
            return RunError(
                "RUN-068",
                f"Worker {second.index} differs from worker {first.index}: {fact} is "
                f"{_shown(theirs.get(fact))}, not {_shown(ours.get(fact))}.",
                why="workers that differ compute different steps, so their sums would be wrong.",
                fix=f"start all workers with the same {fact}.",
            )
    return None


def other_states(told: Mapping[int, Summary]) -> RunError | None:
    """Return the error for variables that differ between workers by more than rounding."""
    first, *others = sorted(told)
    odd: dict[str, int] = {}
    for name, (checksum, length, norm) in told[first].items():
        for other in others:
            theirs = told[other].get(name)
            if theirs is None or theirs[0] == checksum:
                continue
            if not abs(theirs[1] - length) <= _ROUNDING * max(norm, theirs[2]):
                odd[name] = other
    if not odd:
        return None
    name, other = next(iter(odd.items()))
    return RunError(
        "RUN-079",
        f"The workers hold different values of {listed([*odd], _MOST_NAMES)}.",
        why=f"All workers have the same state at the same point of the program. Worker {first} and "
        f"worker {other} differ in {name}: its norm is {told[first][name][2]:.9g} and "
        f"{told[other][name][2]:.9g}. Either their programs assign different values, such as the "
        "time, or evener has a fault.",
        fix="Start the job again from its newest checkpoint, and let the program assign the same "
        "values on all workers; if it does, report it with the logs of all workers.",
    )


def check_states(told: Mapping[int, Summary]) -> None:
    error = other_states(told)
    if error is not None:
        raise error


def exchanged_twice(index: int, key: str) -> RunError:
    return RunError(
        "RUN-075",
        f"Worker {index} has given its value of the exchange {key!r} twice.",
        why="the exchange waits for other workers still.",
        fix="use another key for the second exchange.",
    )


def view_over(number: int, why: str) -> RunError:
    return RunError(
        "RUN-070",
        f"View {number} of the workers is over.",
        why=f"{why}.",
        fix="the workers go on in the next view; evener does so at the end of a step.",
    )


def expelled(index: int, why: str) -> RunError:
    return RunError(
        "RUN-071",
        f"Worker {index} was given up by the other workers.",
        why=f"{why}.",
        fix="start it again, or raise EVENER_HEARTBEAT_SECONDS if its machine stalls for longer.",
    )


def job_over(index: int) -> RunError:
    return RunError(
        "RUN-074",
        f"Worker {index} comes too late: the job has ended.",
        why="all other workers have finished.",
        fix="start a new job to train on.",
    )


def coordinator_gone(address: str, why: str) -> RunError:
    return RunError(
        "RUN-072",
        f"The coordinator at {address} is gone.",
        why=f"{why}.",
        fix="see the output of the process that hosts it, and start the job again.",
    )


def closed(index: int) -> RunError:
    return RunError(
        "RUN-076",
        f"Worker {index} is no member of the job any more.",
        why="it has left, or its connection was closed in this process.",
        fix="call nothing after the end of the training that needs the other workers.",
    )


def _shown(value: object) -> str:
    text = "not there" if value is None else repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def not_reached_by(who: str, what: str, seconds: float) -> RunError:
    return RunError(
        "RUN-091",
        f"The workers {who} have not reached {what} within {seconds:g} seconds.",
        why="They run, but do not come to this point of the program.",
        fix="Look at their logs; EVENER_PATIENCE_SECONDS sets another limit.",
    )


def nobody_tells(why: str) -> RunError:
    return RunError(
        "RUN-095",
        "No other worker tells a replacement what it has missed.",
        why=why,
        fix="Look at the logs of the other workers.",
    )


def other_program(
    found: str,
    why: str = "It runs the program from its beginning with their results, and the program takes "
    "another way: it depends on the time, on files that have changed, or on random numbers that "
    "nobody seeded.",
    fix: str = "The job goes on without it. Seed the program: keras.utils.set_random_seed(1).",
) -> RunError:
    return RunError(
        "RUN-094",
        f"A replacement does not come to where the other workers are: they have {found}.",
        why=why,
        fix=fix,
    )


def weights_are_read() -> RunError:
    """Return the error for a program of a replacement that reads weights; it names the callback."""
    import keras

    owners = [frame.frame.f_locals.get("self") for frame in inspect.stack(context=0)]
    kinds = [type(owner) for owner in owners if isinstance(owner, keras.callbacks.Callback)]
    name = kinds[0].__name__ if kinds else "The program"
    return other_program(
        "weights that the program reads between two steps",
        why=f"{name} reads weights between two steps, and a replacement has them when it has come "
        "to the other workers.",
        fix="The job goes on without it. Read what steps return, such as the values of metrics.",
    )
