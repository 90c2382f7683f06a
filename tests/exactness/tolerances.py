"""How far from one device a result may be: one table, with a reason for every wider row.

The error of a tensor is ``max|a - b| / max(max|a|, SCALE_FLOOR)``, `a` from one device and
`b` from the candidate: relative to the scale of the tensor, so that an entry that happens to
be near zero is not asked for more digits than its neighbours carry. A history (one log over
the epochs), an evaluation and an array of predictions count as one tensor each.

`rounding.py` measures what rounding alone does: one device trains on the same batches with
the samples of each batch in reverse order, which changes nothing but the order of sums.
"""

from __future__ import annotations

SCALE_FLOOR = 1e-2

LAW = 1e-5

WIDER: dict[str, tuple[float, str]] = {}


def tolerance(*names: str) -> float:
    """Return the widest tolerance that the table gives to any of the names, or the law's."""
    return max([LAW, *(WIDER[name][0] for name in names if name in WIDER)])
