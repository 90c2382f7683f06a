"""Events of a run: changes of shares, notes, warnings, checks, checkpoints, gathered operations."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evener.errors import EvenerWarning
from evener.feedback import Rebalanced
from evener.recording.format import MOST_TEXT
from evener.strategy import Strategy

Emit = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def watching(emit: Emit) -> Iterator[None]:
    """Pass messages of evener's log and its warnings on as events, in the block.

    Neither the log nor the warnings change for others: messages that were not shown stay so.

    Args:
        emit: Function that takes the fields of an event.
    """
    logger = logging.getLogger("evener")
    level, shown_from = logger.level, logger.getEffectiveLevel()

    def forward(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.INFO:
            emit(_of_log(record))
        return record.levelno >= shown_from

    show = warnings.showwarning

    def show_warning(message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
        if issubclass(category, EvenerWarning):
            emit({"event": "warning", "text": str(message)})
        show(message, category, *args, **kwargs)

    logger.addFilter(forward)
    logger.setLevel(min(shown_from, logging.INFO))
    warnings.showwarning = show_warning
    try:
        yield
    finally:
        logger.removeFilter(forward)
        logger.setLevel(level)
        # Another one may have been put on top meanwhile.
        if warnings.showwarning is show_warning:
            warnings.showwarning = show


def _of_log(record: logging.LogRecord) -> dict[str, Any]:
    changes = [a for a in record.args or () if isinstance(a, Rebalanced)]
    if not changes:
        return {"event": "log", "text": record.getMessage()}
    change = changes[0]
    return {
        "event": "shares",
        "text": str(change),
        "step": change.step,
        "before": change.before,
        "after": change.after,
    }


class Growing:
    """Lists of a run that only grow; each new entry is an event.

    Args:
        strategy: The strategy.
        notes: Function that returns the notes about the script so far.
    """

    def __init__(self, strategy: Strategy, notes: Callable[[], Sequence[str]]) -> None:
        self._lists: dict[str, Callable[[], Sequence[object]]] = {
            "note": notes,
            "gathered": lambda: strategy.report().gathered,
            "check": lambda: strategy.spot_checks,
            "verified": lambda: strategy.verifications,
        }
        self._seen: dict[tuple[str, str], None] = {}

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of entries that are new."""
        for kind, entries in self._lists.items():
            for entry in entries():
                text = str(entry)[:MOST_TEXT]
                if (kind, text) not in self._seen:
                    self._seen[kind, text] = None
                    yield {"event": kind, "text": text}
