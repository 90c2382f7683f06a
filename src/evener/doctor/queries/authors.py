"""The questions of a program's author, by what the program does about memory and devices."""

from __future__ import annotations

import ast
import re

from evener.analysis import Program
from evener.doctor.queries.memory_watch import watches_memory
from evener.doctor.rule import Author

_OF_DEVICES = re.compile(r"strategy|gpu|cuda|distribut|(physical|logical)_devices|^device$", re.I)
# Longer texts are prose.
_LONGEST = 60


def author_of(program: Program) -> Author:
    """Return what a program tells of the questions of its author."""
    return Author(watches_memory=watches_memory(program), names_devices=_names_devices(program))


def _names_devices(program: Program) -> bool:
    texts = (
        *(node.attr for _, node in program.nodes(ast.Attribute)),
        *(node.id for _, node in program.nodes(ast.Name)),
        *(node.value for _, node in program.nodes(ast.Constant) if isinstance(node.value, str)),
    )
    return any(len(text) <= _LONGEST and _OF_DEVICES.search(text) for text in texts)
