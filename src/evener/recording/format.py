"""Format of a record: the names of its files, its version, and its bounds."""

from __future__ import annotations

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
