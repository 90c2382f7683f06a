"""Lines of code in texts: stacks that Python dumps, and messages that name files."""

from __future__ import annotations

import re
from collections.abc import Callable

from evener.doctor.facts import CodeLine

_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
_THREAD = re.compile(r"^(?:Current t|T)hread (?P<ident>0x[0-9a-f]+).*$", re.MULTILINE)


def frames_in(text: str) -> list[CodeLine]:
    """Return the lines that a text names, in its order.

    >>> frames_in('  File "/a/b.py", line 7, in step')
    [CodeLine(file='/a/b.py', line=7)]
    """
    return [
        CodeLine(file=match["file"], line=int(match["line"])) for match in _FRAME.finditer(text)
    ]


def innermost_in_message(message: str, is_own: Callable[[str], bool]) -> CodeLine | None:
    """Return the last of a person's own lines in a message, where the innermost is last.

    AutoGraph's and TensorFlow's messages are so: ``in user code: ...`` and
    ``Detected at node ... defined at (most recent call last)``.
    """
    own = [frame for frame in frames_in(message) if is_own(frame.file)]
    return own[-1] if own else None


def innermost_in_dump(dump: str, thread: int, is_own: Callable[[str], bool]) -> CodeLine | None:
    """Return where a thread stood in the last dump of `faulthandler`, innermost first."""
    starts = list(_THREAD.finditer(dump))
    stacks: list[tuple[int, str]] = []
    for index, start in enumerate(starts):
        end = starts[index + 1].start() if index + 1 < len(starts) else len(dump)
        stacks.append((int(start["ident"], 16), dump[start.end() : end]))
    # The last dump counts, and in it the main thread before the others.
    for wanted in (True, False):
        for ident, stack in reversed(stacks):
            own = [frame for frame in frames_in(stack) if is_own(frame.file)]
            if own and (ident == thread) is wanted:
                return own[0]
    return None
