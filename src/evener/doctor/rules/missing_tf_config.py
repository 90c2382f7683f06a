"""DOC-208: MultiWorkerMirroredStrategy without TF_CONFIG."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.queries.environment import Setting, reads, settings
from evener.doctor.queries.strategies import Made, strategies
from evener.doctor.rule import Case, Violation

_VARIABLE = "TF_CONFIG"


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    set_here = [setting for setting in settings(program) if setting.name == _VARIABLE]
    for made in strategies(program):
        if made.name != "MultiWorkerMirroredStrategy" or _has_resolver(made):
            continue
        if any(not _is_after(case, setting, made) for setting in set_here):
            continue
        if set_here:
            yield _too_late(made, set_here[0])
        elif not case.surroundings.environment.get(_VARIABLE) and not reads(program, _VARIABLE):
            yield _missing(made)


def _has_resolver(made: Made) -> bool:
    """Return whether the cluster comes from something else, such as Slurm's resolver."""
    given = made.call.argument(0, "cluster_resolver")
    return given is not None and not (isinstance(given, ast.Constant) and given.value is None)


def _is_after(case: Case, setting: Setting, made: Made) -> bool:
    return case.program.order.is_before(made.call.node, setting.node)


def _missing(made: Made) -> Violation:
    return Violation(
        made.call.location,
        f"MultiWorkerMirroredStrategy is made without {_VARIABLE}.",
        why="Without it TensorFlow takes this process for the only worker: each machine trains "
        "a model of its own, without a warning.",
        fix="os.environ['TF_CONFIG'] = json.dumps({'cluster': {'worker': ['host1:12345', "
        "'host2:12345']}, 'task': {'type': 'worker', 'index': 0}}) before this line, the index "
        "another one on each machine; or let the starter set it; or start the program by "
        "`evener launch`, which needs none. On one machine, take MirroredStrategy.",
        evidence=(
            made.call.location.text,
            f"{_VARIABLE} is set neither here nor in the environment",
        ),
    )


def _too_late(made: Made, setting: Setting) -> Violation:
    location = setting.location
    return Violation(
        made.call.location,
        f"MultiWorkerMirroredStrategy is made before {_VARIABLE} is set (line {location.line}).",
        why="The strategy reads it when it is made, and takes this process for the only worker.",
        fix=f"move line {location.line} before this one.",
        evidence=(made.call.location.text, location.text),
    )
