"""Advice about a training step that runs on one device."""

from __future__ import annotations

import textwrap

import pytest

from evener.run.eager_steps import advice_for

SOURCE = textwrap.dedent("""\
    import tensorflow as tensor

    class Trainer:
        def step(self, x):
            with tensor.GradientTape() as tape:
                loss = self.model(x)
            self.apply(tape.gradient(loss, self.w))

    def train(data):
        for x in data:
            with tensor.GradientTape() as tape:
                loss = model(x)
            optimizer.apply(tape.gradient(loss, w))

    @decorated
    def other(x):
        def inner():
            with tensor.GradientTape() as tape:
                loss = model(x)
            return tape.gradient(loss, w)
        optimizer.apply(inner())

    optimizer.apply(sums)
    """)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (7, "put @tensor.function above line 4, def step"),
        (13, "make a function of lines 11 to 13, with @tensor.function above it"),
        (21, "put @tensor.function above line 15, def other"),
        (23, "make a function of the step, with @tensor.function above it"),
    ],
)
def test_the_line_to_change_is_named(line: int, expected: str) -> None:
    assert advice_for(SOURCE, line) == f"{expected}, and all devices compute it"


def test_a_traced_function_needs_the_batch() -> None:
    assert "give the traced function the batch" in (advice_for(SOURCE, 13, is_traced=True) or "")
    assert advice_for(SOURCE, 23, is_traced=True) is None


def test_a_text_that_is_no_python_gets_general_advice() -> None:
    assert advice_for("def f(", 1) == (
        "make a function of the step, with @tf.function above it, and all devices compute it"
    )
