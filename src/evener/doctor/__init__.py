"""Finds mistakes in a training program: each with its line, evidence and fix.

rule.py           a rule, and the violations that it reports
rules/            the table of all rules, one file per rule
pages/            the help page of each rule
queries/          queries on a program that several rules share
surroundings.py   the machine, the environment, the packages
watch/            what a run of a few steps shows
configuration.py  which rules report, and for how many GPUs
ignored.py        comments that suppress findings
diagnose.py       applies the rules, and merges what they report
under_run.py      findings on a program that evener distributes, for the record of its run
edit.py           a span of a file, and the text that a rule offers for it
source_file.py    the bytes of an edited file; writing them
fix.py            makes the edits, and reads the program again

`evener.analysis` reads the program.
"""

from __future__ import annotations

from evener.doctor.diagnose import Diagnosis, diagnose, examine
from evener.doctor.finding import Finding, Severity
from evener.doctor.rule import Case, Family, Rule
from evener.doctor.rules import all_rules
from evener.doctor.surroundings import Surroundings, surroundings_here

__all__ = [
    "Case",
    "Diagnosis",
    "Family",
    "Finding",
    "Rule",
    "Severity",
    "Surroundings",
    "all_rules",
    "diagnose",
    "examine",
    "surroundings_here",
]
