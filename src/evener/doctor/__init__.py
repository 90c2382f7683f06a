"""Finds mistakes in a training program: runs its first steps, and judges what they show.

diagnosis.py      the road: read, run, judge, order; `diagnose` and its result
sources.py        the files of a program
walk.py           a symbolic walk of their text: calls in order, with what is around each
values.py         values and calls of the walk
names.py          names and kinds of things of the libraries
facts.py          what a run shows: plain records, written by the watched process
watch/            the run of a few steps in a process of its own
finding.py        a finding, a rule, and what a rule looks at
rules.py          the table of all rules; help pages of codes, in pages/
endings.py        rules: it cannot be read, crashes, hangs, or ends early
numbers.py        rules: what trains something else than was meant
placement.py      rules: devices and distribution
memory.py         rules: what does not fit, or grows
speed.py          rules: what a step waits for
certain.py        rules on the text, as far as it is certain
surroundings.py   the machine and the environment
configuration.py  which findings are reported
"""

from __future__ import annotations

from evener.doctor.diagnosis import Diagnosis, diagnose, judge, read_program
from evener.doctor.finding import Case, Family, Finding, Reading, Rule, Severity
from evener.doctor.rules import all_rules
from evener.doctor.surroundings import Surroundings, surroundings_here

__all__ = [
    "Case",
    "Diagnosis",
    "Family",
    "Finding",
    "Reading",
    "Rule",
    "Severity",
    "Surroundings",
    "all_rules",
    "diagnose",
    "judge",
    "read_program",
    "surroundings_here",
]
