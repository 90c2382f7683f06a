"""Amount of work to infer the dtypes of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evener.analysis import Module, Program, Value
from unit.doctor.programs import findings_of, marks_in

# Every name comes from every other one, on many ways.
TANGLED = """\
import tensorflow as tf

a, b, c = tf.ones((2,)), tf.zeros((2,)), tf.ones((2,), dtype=tf.int32)
while True:
    a = a + b - c * a
    b = b * a + c - b
    c = c - b * a + c
    a = c * a - b + a
    b = a - c + b * b
    c = b + c * c - a
print(tf.ones((2,)) + tf.zeros((2,), dtype=tf.int32))  # finding: DOC-309
"""
# Inferred once each, it takes 570; on every way on which they are reached, more than 10 ** 9.
MOST_QUERIES = 5_000


def test_the_same_expression_is_not_inferred_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_queries = 0
    origins = Program.origins

    def counted(self: Program, module: Module, *args: Any) -> tuple[Value, ...]:
        nonlocal num_queries
        num_queries += 1
        if num_queries > MOST_QUERIES:
            pytest.fail(f"more than {MOST_QUERIES} queries for the origins of values")
        return origins(self, module, *args)

    monkeypatch.setattr(Program, "origins", counted)
    script = tmp_path / "tangled.py"
    script.write_text(TANGLED, encoding="utf-8")
    found = {
        finding.line for finding in findings_of(script, num_gpus=1) if finding.code == "DOC-309"
    }
    assert {mark.line for mark in marks_in(script)} <= found
