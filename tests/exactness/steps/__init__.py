"""A corpus of steps as people write them for one device, as data for tests of exactness.

`case.CASES` maps a name, ``group/name``, to what builds the step. The modules register their cases
when this package is imported.
"""

from . import (
    arguments,
    generative,
    looking,
    losses,
    networks,
    noise,
    programs,
    representations,
    tables,
    updates,
)

__all__ = [
    "arguments",
    "generative",
    "looking",
    "losses",
    "networks",
    "noise",
    "programs",
    "representations",
    "tables",
    "updates",
]
