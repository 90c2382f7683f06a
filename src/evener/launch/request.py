"""What a subprocess is asked: JSON on its command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class SubprocessRequest:
    """A request to a subprocess that runs a program up to its first training step.

    Args:
        args: The command line arguments of the program.
        answer: The path of the file for the result; `evener.launch.answer.ask` gives it.
    """

    args: tuple[str, ...]
    answer: str = ""

    def to_json(self) -> str:
        """Return the request as the subprocess reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the request that a text of `to_json` holds."""
        fields = json.loads(text)
        return cls(**{**fields, "args": tuple(fields["args"])})
