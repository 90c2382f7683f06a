"""The script, and the modules of its folder that it imports, rewritten for a `Hoister`."""

from __future__ import annotations

import dataclasses

from evener.analysis.hoisting import hoist_steps
from evener.analysis.hoisting.rewrite import HOOK
from evener.launch.hoisting.hoister import Hoister
from evener.launch.script import Script


def hoisted(script: Script, hoister: Hoister) -> Script:
    """Return a script whose training steps call a hoister; the script itself if it has none."""
    try:
        found = hoist_steps(script.source, script.path, first_number=hoister.next_number)
    except (SyntaxError, ValueError, RecursionError):
        # Python reports it when the script runs.
        return script
    hoister.add(script.path, found)
    if not found.regions:
        return script
    return dataclasses.replace(script, tree=found.tree, names={HOOK: hoister})
