"""A note at the end of a run that was to be verified, and in which nothing was compared."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from evener.errors import house_form
from evener.run.notes import Notes

if TYPE_CHECKING:
    from evener.strategy import Strategy


def report_unverified(strategy: Strategy, notes: Notes) -> Callable[[], None]:
    """Return a function that notes (RUN-024), at the end, that no step was compared.

    Args:
        strategy: The strategy of the run.
        notes: Notes about the script.
    """
    process = os.getpid()

    def report() -> None:
        # Forks of the script end too.
        if os.getpid() != process or strategy.verifications:
            return
        devices = ", ".join(strategy.plan.device_names)
        if strategy.is_partitioned:
            why = (
                f"No training step of the script was divided over {devices} and could be computed "
                "twice."
            )
            fix = "The lines above say which steps run on one device, and why."
        else:
            why = f"The run has one device, {devices}, and one part."
            fix = "Run it on several devices, such as --devices cpu:2."
        text = house_form("RUN-024", "--verify compared nothing with one device.", why, fix)
        # Continuation lines of notes are indented.
        notes.add(text.replace("\n", "\n  "))

    return report
