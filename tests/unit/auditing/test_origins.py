"""The Python operation behind a node: where the frames of a program end and the audit begins."""

from __future__ import annotations

from pathlib import Path

from evener.strategy import placed_graph, step_audit


def test_the_file_of_the_audit_is_the_one_that_calls_the_step() -> None:
    # Frames outside of it are the call of the audit, and no line of the step.
    assert Path(placed_graph._AUDIT) == Path(step_audit.__file__)
