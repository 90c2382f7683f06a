"""What is wrong with a training program: each mistake with its line, evidence and fix.

api/             what TensorFlow and Keras call their things, now and before
program/         what the text says; nothing is run
surroundings.py  the machine, the environment, the packages
watch/           what a run of a few steps shows
rule.py          what a rule is
rules/           the rules, one file each
pages/           what `evener doctor --explain` prints, one page for each rule
configuration.py which rules report, and for how many GPUs
ignored.py       findings that comments take back
diagnose.py      all of it together
"""

from __future__ import annotations

from evener.doctor.diagnose import Diagnosis, diagnose, examine
from evener.doctor.finding import Finding, Severity
from evener.doctor.rule import Case, Family, Rule, all_rules
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
