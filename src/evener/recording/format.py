"""Format of a record: the names of its files, its version, its bounds, and what it leaves out."""

from __future__ import annotations

import re
from collections.abc import Iterable

VERSION = 1
"""Version of the format. Readers refuse newer ones; fields may be added under the same number."""

RECORD = "record.json"
EVENTS, METRICS, LOSSES, STEPS = "events.jsonl", "metrics.jsonl", "losses.jsonl", "steps.jsonl"

MOST_BYTES = {EVENTS: 1_000_000, METRICS: 8_000_000, LOSSES: 2_000_000, STEPS: 8_000_000}
"""Largest size of each file. The last line of a full file says that lines are missing."""

FULL = {"full": True}
"""Last line of a full file."""

MOST_TEXT = 2_000
"""Largest number of characters of a text in an event."""

_SECRET = (
    "(?:token|secret|passw(?:or)?d|passphrase|credentials?|authorization|(?<![a-z])(?:auth|pass|pwd)"
    "|(?:access|account|api|auth|encryption|private|secret|ssh)[-_.]?key)"
)
_OPTION = re.compile(rf"--?[\w.-]*{_SECRET}", re.IGNORECASE)
_VALUE = re.compile(rf"({_SECRET}[\"']?\s*[=:]).*|(?<=://)[^\s/]+(?=@)", re.IGNORECASE | re.DOTALL)


def without_secrets(command: Iterable[str]) -> list[str]:
    """Return the words of a command line, without values whose names say that they are secret.

    >>> without_secrets(["train.py", "--api-key", "1a", "--lr", "3", "HF_TOKEN=2b", "s3://me:3c@host"])
    ['train.py', '--api-key', '[hidden]', '--lr', '3', 'HF_TOKEN=[hidden]', 's3://[hidden]@host']
    """
    words: list[str] = []
    hides_next = False
    for word in command:
        is_value = hides_next and not word.startswith("--")
        shown = _VALUE.sub(lambda found: f"{found[1] or ''}[hidden]", word)
        words.append("[hidden]" if is_value else shown)
        hides_next = _OPTION.fullmatch(word) is not None
    return words
