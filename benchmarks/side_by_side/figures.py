"""Figures of a comparison: medians with their spread, and ratios paired by round."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median with what it lies between."""

    median: float
    least: float
    most: float

    def text(self, digits: int = 0) -> str:
        """Return for example ``"7,830 (7,700-7,910)"``."""
        median, least, most = (
            f"{value:,.{digits}f}" for value in (self.median, self.least, self.most)
        )
        return f"{median} ({least}-{most})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Something that the benchmark should show, and what it showed."""

    what: str
    wanted: float
    got: float
    at_least: bool = True

    @property
    def is_met(self) -> bool:
        """Whether it was shown."""
        return self.got >= self.wanted if self.at_least else self.got <= self.wanted

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return (
            f"{'met ' if self.is_met else 'MISSED'}  {self.what}: "
            f"{self.got:.3f} (aim {sign} {self.wanted:g})"
        )


def spread(values: Sequence[float]) -> Spread:
    """Return the median, the least and the most of some values."""
    return Spread(median=statistics.median(values), least=min(values), most=max(values))


def paired(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Return the spread of the ratios of two contenders, round by round."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def terminal() -> Console:
    """Return the terminal; where there is none, lines are long enough for the tables."""
    return Console() if sys.stdout.isatty() else Console(width=130)


def machine() -> dict[str, Any]:
    """Return where and when this is measured."""
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "tensorflow": version("tensorflow"),
        "keras": version("keras"),
    }


def write_json(path: Path, figures: Mapping[str, Any], aims: Sequence[Aim]) -> None:
    """Write figures and aims beside the machine they were measured on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = [{**asdict(aim), "is_met": aim.is_met} for aim in aims]
    content = {"machine": machine(), "aims": listed, **figures}
    path.write_text(json.dumps(content, indent=2) + "\n")
