"""Source lines of the program."""

from __future__ import annotations

from evener._tf_private.functions import stack


def test_the_stack_ends_in_this_file() -> None:
    assert any(file == __file__ for file, _ in stack())
