"""Findings on a program that `evener run` trains: those that evener does not settle itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evener.doctor.configuration import configuration_for
from evener.doctor.diagnose import examine
from evener.doctor.rule import Family, Rule
from evener.doctor.rules import all_rules
from evener.doctor.surroundings import surroundings_here

_OF_SEVERAL_REPLICAS = frozenset({"DOC-214", "RUN-010"})
"""Mistakes of programs with several replicas: under evener there is one, on all devices."""


def findings_under_run(path: str, num_devices: int) -> dict[str, Any]:
    """Return the findings on a program that evener distributes, as a record keeps them.

    Rules on distribution do not apply: evener divides the batch, needs no scope, and gives a
    program's own strategy one replica. The program is read, not run.

    Args:
        path: Absolute path of the script.
        num_devices: Number of devices of the run: of GPUs to assume on a machine without GPUs.

    Returns:
        ``findings`` as `Finding.to_dict` gives them, each with its ``location``; ``num_ignored``
        by comments in the program; ``problem``: reason why the program could not be examined,
        else empty.
    """
    try:
        chosen = configuration_for(Path(path))
        here = surroundings_here()
        surroundings = here.judged_for(len(here.machine.gpus) or num_devices)
        rules = [rule for rule in all_rules() if chosen.reports(rule.code) and _applies(rule)]
        found = examine(Path(path), surroundings, rules=rules)
    except Exception as error:
        # A fault of a rule, or of its settings, is told in the record: it never ends the run.
        problem = f"{type(error).__name__}: {error}"
        return {"findings": [], "num_ignored": 0, "problem": problem}
    findings = [{"location": each.location, **each.to_dict()} for each in found.findings]
    return {"findings": findings, "num_ignored": found.num_ignored, "problem": ""}


def _applies(rule: Rule) -> bool:
    return rule.family is not Family.DISTRIBUTION and rule.code not in _OF_SEVERAL_REPLICAS
