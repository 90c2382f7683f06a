"""Samples that each device can hold, so that shares obey its memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from evener.devices.names import device_name
from evener.engine.memory.estimate import LiveRange, live_ranges_of, peak_of
from evener.engine.partition.emit import PartitionedStep
from evener.errors import warn
from evener.units import format_bytes

# The rest is for what operations need while they run, and for the gaps between allocations.
_USED_FOR_TENSORS = 0.9


class MemoryLimits:
    """Most samples of a batch that each device can hold in a step.

    Args:
        step: Step with one part for each device.
        memory_bytes: Memory of each device; None where it is not limited.
        owned_bytes: Function that returns the bytes of the variables of each device, such as
            ``"gpu:0"``.

    Attributes:
        largest_batch: Most samples that shares were limited for, outside of graphs.
    """

    def __init__(
        self,
        step: PartitionedStep,
        memory_bytes: Sequence[int | None],
        owned_bytes: Callable[[], Mapping[str, int]],
    ) -> None:
        self.largest_batch = 0
        self._devices = step.partition.layout.devices
        self._memory_bytes = tuple(memory_bytes)
        self._owned_bytes = owned_bytes
        self._live_ranges: dict[str, list[LiveRange]] = defaultdict(list)
        for live_range in live_ranges_of(step):
            self._live_ranges[device_name(live_range.device)].append(live_range)

    def most_samples(self, num_samples: int) -> tuple[int, ...]:
        """Return for each device the most samples of a batch that fit into its memory.

        Args:
            num_samples: Samples of the global batch.
        """
        owned = self._owned_bytes()
        return tuple(
            num_samples if memory is None else self._most(k, memory, num_samples, owned)
            for k, memory in enumerate(self._memory_bytes)
        )

    def maximum_shares(self, num_samples: int) -> tuple[float, ...]:
        """Return for each device the largest share of a batch that fits into its memory.

        Args:
            num_samples: Samples of the global batch.

        Warns:
            EvenerWarning: ENG-051 if the devices together cannot hold the batch.
        """
        most = self.most_samples(num_samples)
        if sum(most) < num_samples:
            self._warn(most, num_samples)
        # Half a sample less: sizes are rounded sums of shares.
        return tuple(
            1.0 if count >= num_samples else max(0.0, (count - 0.5) / num_samples) for count in most
        )

    def _most(self, part: int, memory: int, num_samples: int, owned: Mapping[str, int]) -> int:
        name = self._devices[part]
        room = memory * _USED_FOR_TENSORS - owned.get(name, 0)
        sizes = [0] * len(self._devices)

        def fits(samples: int) -> bool:
            sizes[part] = samples
            return peak_of(self._live_ranges[name], sizes, num_samples).total <= room

        if fits(num_samples):
            return num_samples
        low, high = 0, num_samples
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _warn(self, most: Sequence[int], num_samples: int) -> None:
        held = ", ".join(
            f"{name} holds about {count}" + (f" in {format_bytes(size)}" if size else "")
            for name, count, size in zip(self._devices, most, self._memory_bytes, strict=True)
        )
        warn(
            "ENG-051",
            f"A batch of {num_samples} samples may not fit into the memory of the devices.",
            why=f"{held}.",
            fix="Make the batch smaller, or let `evener plan` look for stages, micro-batches or "
            "recomputation that fit; `evener run --plan auto` uses what it finds.",
        )
