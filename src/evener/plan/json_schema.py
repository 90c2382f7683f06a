"""JSON Schema of plans, for editors and other programs.

The schema is the file ``plan.schema.json`` in this folder, which ``tools/plan_schema.py`` generates
from the dataclasses of a plan.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, cast

SCHEMA_FILE = "plan.schema.json"
"""Name of the file, in this folder."""


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of plans in version 1.

    It defines keys, types, ranges of numbers (seconds, bytes, samples) and allowed words. Only
    `Plan.from_json` checks rules between fields, such as that a stage names a device of the plan.

    Returns:
        A new value of dicts, lists, text and numbers, as ``json.loads`` makes it.

    >>> sorted(plan_schema()["required"])
    ['devices', 'owners', 'replicas', 'version']
    """
    return cast("dict[str, Any]", json.loads(plan_schema_text()))


def plan_schema_text() -> str:
    """Return the JSON Schema as text, to be written to a file."""
    return resources.files("evener.plan").joinpath(SCHEMA_FILE).read_text(encoding="utf-8")
