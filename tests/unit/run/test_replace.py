from __future__ import annotations

import inspect

from evener.run.replace import instead_of


def test_what_stands_in_for_a_function_has_its_name_and_signature() -> None:
    def original(self: object, *, name: str | None = None) -> None:
        """Do it."""

    @instead_of(original)
    def replacement(*args: object, **kwargs: object) -> tuple[object, ...]:
        return (*args, *kwargs.items())

    # What Keras asks of every __init__ before it is called.
    assert inspect.getfullargspec(replacement) == inspect.getfullargspec(original)
    assert (replacement.__name__, replacement.__doc__) == ("original", "Do it.")
    assert replacement(1, name="a") == (1, ("name", "a"))
