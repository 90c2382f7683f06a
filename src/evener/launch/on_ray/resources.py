"""Resources that a worker asks Ray for: CPUs, GPUs, and those that a cluster has named."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evener.launch.on_ray import faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources of a worker."""

    num_cpus: float = 1.0  # 0 or more.
    num_gpus: float = 0.0  # 0 or more.
    # Quantities of the other resources, by their names, each above 0.
    others: Mapping[str, float] = field(default_factory=dict[str, float])

    def quantities(self) -> dict[str, float]:
        """Return the quantities that are not 0 by the names that Ray gives them."""
        found = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.others}
        return {name: number for name, number in found.items() if number}

    def actor_options(self) -> dict[str, Any]:
        """Return the options of an actor that asks for them."""
        return {
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "resources": dict(self.others),
        }

    def __str__(self) -> str:
        """Return the resources as the command line writes them."""
        return ",".join(f"{name}={number:g}" for name, number in self.quantities().items())


def parse_resources(text: str) -> Resources:
    """Return the resources that a text lists; one CPU if it does not name CPU.

    >>> str(parse_resources("GPU=2,fast_disk=1"))
    'CPU=1,GPU=2,fast_disk=1'
    """
    found: dict[str, float] = {}
    for item in text.split(","):
        name, equals, number = (part.strip() for part in item.partition("="))
        try:
            quantity = float(number)
        except ValueError:
            quantity = math.nan
        if not (name and equals and math.isfinite(quantity) and quantity >= 0):
            raise faults.wrong_resources(text, f"{item.strip()!r} is not NAME=NUMBER")
        if name in found:
            raise faults.wrong_resources(text, f"{name} is there twice")
        # As Ray demands it: larger quantities of devices cannot be parted.
        if quantity > 1 and quantity != int(quantity):
            raise faults.wrong_resources(text, f"{quantity:g} is above 1 and no whole number")
        for known in ("CPU", "GPU"):
            if name.upper() == known and name != known:
                raise faults.wrong_resources(text, f"Ray writes {known}, not {name}")
        found[name] = quantity
    num_cpus, num_gpus = found.pop("CPU", 1.0), found.pop("GPU", 0.0)
    others = {name: number for name, number in found.items() if number}
    if not (num_cpus or num_gpus or others):
        raise faults.wrong_resources(text, "all are 0, so every worker fits everywhere")
    return Resources(num_cpus=num_cpus, num_gpus=num_gpus, others=others)


def resources_of(
    texts: Sequence[str], num_workers: int, num_gpus: Sequence[int]
) -> tuple[Resources, ...]:
    """Return the resources of every worker, from no text, one for all workers, or one for each.

    ``num_gpus`` has the GPUs that the devices of a worker are among: one number for all workers, or
    one for each. They are asked for where there is no text.
    """
    if len(texts) not in (0, 1, num_workers):
        raise faults.wrong_resources(
            " ".join(texts), f"given {len(texts)} times for {num_workers} workers"
        )
    found = [parse_resources(text) for text in texts]
    found = found or [Resources(num_gpus=number) for number in num_gpus]
    return tuple(found if len(found) == num_workers else found * num_workers)


def lacking(needs: Iterable[Resources], there: Mapping[str, float]) -> str:
    """Return the clause that says what a whole cluster lacks, or an empty one.

    >>> lacking([Resources(num_gpus=1)] * 2, {"CPU": 4.0})
    'they need 2 GPU in all, and the cluster has 0'
    """
    total: dict[str, float] = {}
    for need in needs:
        for name, number in need.quantities().items():
            total[name] = total.get(name, 0.0) + number
    missing = [
        f"they need {number:g} {name} in all, and the cluster has {there.get(name, 0.0):g}"
        for name, number in total.items()
        if number > there.get(name, 0.0)
    ]
    return "; ".join(missing)
