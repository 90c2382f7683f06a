"""Whether a program is written for the graphs and sessions of TensorFlow 1."""

from __future__ import annotations

import re

from evener.doctor.queries.removed_names import Missing, missing_names
from evener.doctor.queries.training import trainings
from evener.doctor.rule import Case

# What only a program that makes a graph and runs it in a session uses.
_GRAPH = re.compile(
    r"(tensorflow|tf)\.("
    r"placeholder|train\.MonitoredTrainingSession|train\.Supervisor|estimator\.EstimatorSpec"
    r")"
)
# What programs of Keras have too: optimizers of TensorFlow 1, a session to set options.
_PARTS = re.compile(
    r"(tensorflow|tf)\.("
    r"Session|InteractiveSession|get_variable|global_variables_initializer"
    r"|initialize_all_variables|train\.\w+Optimizer|train\.Saver|layers\.\w+"
    r"|train\.get_or_create_global_step"
    r")"
)


def graph_names(case: Case) -> list[Missing]:
    """Return the names of TensorFlow 1's graphs that a program uses; none if it is no such one."""
    missing = missing_names(case)
    is_graph = any(_GRAPH.fullmatch(use.name) for use in missing)
    if not is_graph and trainings(case.program):
        return []
    return [use for use in missing if _GRAPH.fullmatch(use.name) or _PARTS.fullmatch(use.name)]


def is_graph_program(case: Case) -> bool:
    """Return whether a program needs TensorFlow 1: the other rules do not apply to it."""
    return bool(graph_names(case))
