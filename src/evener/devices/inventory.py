"""The inventory: every device, whether it is used, and if not, why."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from evener.devices.fields import InventoryFields


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory(InventoryFields):
    """The devices of the machine, and which of them a device spec uses.

    Args:
        devices: All devices: GPUs by number, then the CPU or its stand-ins.
        links: The connections of the GPUs, each pair once.
        problems: Problems of the whole machine.
        fallback: Problem for which fewer devices are used than were requested; None if all are.
        spec: The device spec as text.
        driver_version: Version of NVIDIA's driver.
        cuda_driver_version: The newest CUDA that the driver supports.
        tensorflow_version: Version of the installed TensorFlow.
        cuda_version: The CUDA that TensorFlow was built for.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the inventory as plain dicts, lists, strings and numbers."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Return the inventory as one JSON object; sizes are bytes."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        """Return the inventory as a plain text table."""
        from evener.devices.table import print_inventory
        from evener.terminal import WIDTH, text_of

        return text_of(lambda console: print_inventory(self, console), WIDTH)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        from evener.terminal import html_of

        return html_of(str(self))
