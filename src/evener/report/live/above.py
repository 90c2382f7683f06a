"""Standard output and error of a program, above the live view."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TextIO


class Place(Protocol):
    """Screen that output is written above."""

    @property
    def is_drawn(self) -> bool:
        """Whether there is a view on the terminal."""
        ...

    @property
    def lock(self) -> threading.RLock:  # type: ignore[valid-type]
        """Lock of what is on the terminal."""
        ...

    def write_above(self, text: str, stream: TextIO) -> None:
        """Write complete lines above the view."""
        ...


class Above:
    """A text stream whose lines are written above the view, as they are.

    A line that is not complete, such as another progress bar, is the first line of the view until
    it is. Without a view, all goes straight to the stream, as in processes that are forked.

    Args:
        stream: Stream of the terminal.
        place: Screen with the view.
    """

    def __init__(self, stream: TextIO, place: Place) -> None:
        self._stream = stream
        self._place = place
        self.rest = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    @property
    def buffer(self) -> _Bytes:
        """The same stream for bytes."""
        return _Bytes(self)

    @property
    def shown_rest(self) -> str:
        """The part of the incomplete line that a terminal would show."""
        return self.rest.rstrip("\r").rpartition("\r")[2].replace("\b", "")

    def write(self, text: str) -> int:
        """Write a text; return the number of its characters."""
        if not self._place.is_drawn:
            return self._stream.write(text)
        with self._place.lock:
            lines, end, self.rest = (self.rest + text).rpartition("\n")
            if end:
                self._place.write_above(f"{lines}\n", self._stream)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Flush the stream; an incomplete line appears with the next view."""
        self._stream.flush()

    def take_rest(self) -> str:
        """Return the incomplete line, which is no longer kept."""
        rest, self.rest = self.rest, ""
        return rest


class _Bytes:
    """Bytes for a stream that is above a view."""

    def __init__(self, above: Above) -> None:
        self._above = above

    def __getattr__(self, name: str) -> Any:
        return getattr(self._above._stream.buffer, name)

    def write(self, content: Any) -> int:
        """Write bytes; return their number."""
        self._above.write(bytes(content).decode(errors="surrogateescape"))
        return len(content)

    def flush(self) -> None:
        """Flush the stream."""
        self._above.flush()


def redirected_handlers(streams: Mapping[Any, Any]) -> Callable[[], None]:
    """Let handlers of the logging module, which keep their stream, write to others.

    Args:
        streams: New stream for each old one.

    Returns:
        Function that undoes it.
    """
    loggers = [logging.getLogger(), *logging.root.manager.loggerDict.values()]
    handlers = {h: None for logger in loggers for h in getattr(logger, "handlers", ())}
    changed: list[tuple[Any, Any]] = []
    for handler in handlers:
        stream = getattr(handler, "stream", None)
        new = next((after for before, after in streams.items() if before is stream), None)
        if new is not None and isinstance(handler, logging.StreamHandler):
            changed.append((handler, stream))
            handler.setStream(new)

    def undo() -> None:
        for handler, stream in changed:
            with contextlib.suppress(ValueError, OSError):
                handler.setStream(stream)

    return undo
