"""Findings on a program that `evener run` trains: those that evener does not settle itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evener.doctor.configuration import configuration_for
from evener.doctor.diagnosis import judge, read_program
from evener.doctor.facts import Facts
from evener.doctor.finding import Family
from evener.doctor.rules import all_rules
from evener.doctor.surroundings import surroundings_here

# Mistakes of programs with several replicas: under evener there is one, on all devices.
_OF_SEVERAL_REPLICAS = ("DOC-214", "DOC-216", "RUN-010", "ENG-003")


def findings_under_run(path: str, num_devices: int, facts: Facts | None = None) -> dict[str, Any]:
    """Return the findings on a program that evener distributes, as a record keeps them.

    Rules on distribution do not apply: evener divides the batch, needs no scope, and gives a
    program's own strategy one replica.

    Args:
        path: Absolute path of the script.
        num_devices: Number of devices of the run: of GPUs to assume on a machine without GPUs.
        facts: Facts of the run, as far as they are known; None if the program is only read.

    Returns:
        ``findings`` as `Finding.to_dict` gives them, each with its ``location``; ``num_ignored``
        by comments in the program; ``problem``: reason why the program could not be examined,
        else empty.
    """
    settled = {rule.code for rule in all_rules() if rule.family is Family.DISTRIBUTION}
    try:
        chosen = configuration_for(Path(path))
        here = surroundings_here()
        surroundings = here.judged_for(len(here.machine.gpus) or num_devices)
        findings, num_ignored = judge(
            facts,
            read_program(Path(path)),
            surroundings,
            lambda code: (
                chosen.reports(code) and code not in settled and code not in _OF_SEVERAL_REPLICAS
            ),
        )
    except Exception as error:
        # A fault of a rule, or of its settings, is told in the record: it never ends the run.
        problem = f"{type(error).__name__}: {error}"
        return {"findings": [], "num_ignored": 0, "problem": problem}
    told = [{"location": each.location, **each.to_dict()} for each in findings]
    return {"findings": told, "num_ignored": num_ignored, "problem": ""}
