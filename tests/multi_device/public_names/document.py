"""The document of what is sharded: written from verdicts, and read back by the tests."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from multi_device.public_names.namespaces import NAMESPACES, aliases
from multi_device.public_names.reasons import REASONS
from multi_device.public_names.verdicts import Verdict

PATH = Path(__file__).parents[3] / "docs/sharded_operations.md"
SHARDED, REDUCED, GATHERED = "Sharded", "Reduced", "Gathered"
INTRODUCTION = """\
# What is sharded

This page lists the public layers, losses, metrics and operations of Keras and TensorFlow that a
partitioned step computes in parts along the batch. It is generated: `tools/sharding_table.py` calls
every public name on a batch of unknown size, with its gradient if it has one, and partitions the
call. A test compares the results and gradients of parts of 4, 0 and 3 samples with those of one
device; those of `keras.ops`, which calls functions of TensorFlow, for one name in three.

- **Sharded**: every device computes the rows of its own samples.
- **Reduced**: every device reduces its own samples, and the partial results are combined.
- **Gathered**: the operation runs once, on the rows of all devices, for the reason in the table.
  The results are the same.

An operation that is not listed is gathered too, unless it has a rule; `step.report()` names it
([steps](steps.md)).
"""


def group_of(verdict: Verdict) -> str:
    """Return the heading under which a name stands."""
    if verdict.gathered or verdict.in_gradient:
        return GATHERED
    return SHARDED if "sharded" in verdict.state else REDUCED


def written(verdicts: Mapping[str, Verdict]) -> str:
    counts: dict[str, int] = defaultdict(int)
    for verdict in verdicts.values():
        counts[group_of(verdict)] += 1
    numbers = ", ".join(f"{counts[k]} {k.lower()}" for k in (SHARDED, REDUCED, GATHERED))
    lines = [INTRODUCTION, f"Of {len(verdicts)} names: {numbers}.", ""]
    for space in NAMESPACES:
        own = {
            p.removeprefix(f"{space.path}."): v
            for p, v in verdicts.items()
            if p.rpartition(".")[0] == space.path
        }
        lines += [f"## {space.path}", ""]
        for group in (SHARDED, REDUCED):
            names = sorted(name for name, verdict in own.items() if group_of(verdict) == group)
            if names:
                lines += [f"**{group}**: {', '.join(f'`{name}`' for name in names)}", ""]
        gathered = sorted(name for name, verdict in own.items() if group_of(verdict) == GATHERED)
        if gathered:
            lines += ["| Gathered | operations | in the gradient | why |", "|---|---|---|---|"]
            lines += [_row(space.path, name, own[name]) for name in gathered] + [""]
        others = _not_called(space.path)
        if others:
            lines += ["| Not called | why |", "|---|---|", *others, ""]
    return "\n".join(lines).rstrip() + "\n"


def _row(space: str, name: str, verdict: Verdict) -> str:
    operations = (", ".join(ops) for ops in (verdict.gathered, verdict.in_gradient))
    return f"| `{name}` | {' | '.join(operations)} | {REASONS[f'{space}.{name}']} |"


def _not_called(path: str) -> list[str]:
    (space,) = (space for space in NAMESPACES if space.path == path)
    others = aliases()
    return [
        f"| `{name}` | {why} |"
        for name, why in sorted(space.not_called.items())
        if hasattr(space.module, name) and f"{path}.{name}" not in others
    ]


def listed(text: str) -> dict[str, str]:
    """Return the group of every name that a document lists."""
    found: dict[str, str] = {}
    for section in text.split("\n## ")[1:]:
        path, _, body = section.partition("\n")
        for line in body.splitlines():
            head = re.match(r"\*\*(\w+)\*\*: ", line)
            if head is not None:
                found |= {f"{path}.{name}": head[1] for name in re.findall(r"`(\w+)`", line)}
            elif line.startswith("| `") and line.count("|") == 5:
                name = re.findall(r"`(\w+)`", line)[0]
                found[f"{path}.{name}"] = GATHERED
    return found
