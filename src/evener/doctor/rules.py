"""The table of all rules, by family, and the help pages of their codes and of errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from evener.doctor import certain, endings, memory, numbers, placement, speed
from evener.doctor.finding import PAGES, Case, Family, Rule, Severity, Violation

_ERROR, _WARNING, _HINT = Severity
_Check = Callable[[Case], Iterator[Violation]]

# Errors that a mistake certainly ends in: a crash with such a text has the code of the mistake.
_CRASHES = {
    "DOC-105": r"cannot be modified after being initialized",
    "DOC-107": r"while parsing the device spec|unknown device|Could not satisfy (explicit )?device",
    "DOC-014": r"The filepath provided must end in|Invalid filepath extension for saving",
    "DOC-205": r"Inputs to operation .*AddN.* must have the same size and shape",
    "DOC-323": r"outside the valid range|Argument `output` must have rank|Arguments `target` and "
    r"`output` must have the same",
    "DOC-330": r"No gradients provided for any variable",
    "DOC-605": r"OOM when allocating|ResourceExhausted|RESOURCE_EXHAUSTED",
    "RUN-009": r"tried to create variables|singleton tf\.Variable",
    "RUN-010": r"PerReplica",
}
# Errors that a mistake may end in: where it is found, such a crash is its evidence.
_EXPLAINS = {
    "DOC-104": r"cannot be modified after being initialized",
    "DOC-215": r"different tf\.distribute\.Strategy|different strateg|strategy\.scope|outside of",
    "DOC-336": r"optimizer cannot recognize variable|Unknown variable",
    "ENG-003": r"different tf\.distribute\.Strategy|different strateg|strategy\.scope|outside of",
    **_CRASHES,
}
# Codes of errors that evener raises for the mistake of a rule of another code.
_ALSO = {
    "DOC-002": ("RUN-001", "RUN-002"),
    "DOC-101": ("DEV-101", "DEV-115"),
}

_TABLE: dict[Family, tuple[tuple[str, Severity, *tuple[_Check, ...]], ...]] = {
    Family.PROGRAM: (
        ("DOC-001", _ERROR, endings.not_python),
        ("DOC-002", _ERROR, endings.unreadable),
        ("DOC-004", _ERROR, endings.removed_names),
        ("DOC-010", _ERROR, endings.hangs),
        ("DOC-011", _ERROR, endings.crashed),
        ("DOC-012", _WARNING, endings.ended_early),
        ("DOC-013", _ERROR, placement.fork_after_start, certain.fork_after_start),
        ("DOC-014", _ERROR, certain.file_endings),
    ),
    Family.NUMBERS: (
        ("DOC-214", _ERROR, numbers.unscaled_loss, certain.unscaled_loss),
        ("DOC-216", _ERROR, placement.whole_batches, certain.whole_batches),
        ("DOC-308", _ERROR, numbers.outside_of_model),
        ("DOC-320", _ERROR, numbers.logits_as_probabilities),
        ("DOC-321", _ERROR, numbers.probabilities_as_logits),
        ("DOC-322", _ERROR, numbers.wrong_softmax),
        ("DOC-323", _ERROR, numbers.labels_and_classes),
        ("DOC-324", _ERROR, numbers.broadcast_labels),
        ("DOC-325", _ERROR, numbers.softmax_axis),
        ("DOC-326", _ERROR, numbers.unreachable_labels),
        ("DOC-327", _WARNING, numbers.ignored_mask),
        ("DOC-330", _ERROR, numbers.no_gradient),
        ("DOC-331", _ERROR, numbers.not_updated, numbers.gradients_of_others),
        ("DOC-332", _ERROR, numbers.frozen_and_trained),
        ("DOC-333", _ERROR, numbers.gradient_sizes),
        ("DOC-334", _ERROR, numbers.not_finite),
        ("DOC-335", _ERROR, numbers.learning_rate),
        ("DOC-336", _WARNING, numbers.set_back),
        ("DOC-337", _ERROR, numbers.loss_scaling),
        ("DOC-338", _WARNING, numbers.constant_seed),
        ("DOC-340", _ERROR, numbers.training_flag),
        ("DOC-341", _WARNING, numbers.sorted_data),
        ("DOC-342", _ERROR, numbers.shuffled_apart, certain.shuffled_apart),
        ("DOC-343", _ERROR, numbers.leaked_validation),
        ("DOC-344", _ERROR, numbers.input_scale),
        ("DOC-345", _ERROR, numbers.repeated_batches),
        ("DOC-348", _WARNING, numbers.metric_not_reset),
        ("RUN-010", _ERROR),
        ("DOC-339", _ERROR, numbers.trained_twice),
        ("DOC-349", _WARNING, numbers.metric_mismatch),
        ("DOC-350", _ERROR, numbers.maximized),
        ("DOC-351", _WARNING, numbers.cached_changes),
        ("DOC-352", _WARNING, numbers.run_out),
        ("RUN-009", _ERROR, numbers.made_again),
    ),
    Family.DEVICES: (
        ("DOC-101", _WARNING, placement.hidden_gpus),
        ("DOC-104", _WARNING, placement.late_variables, certain.late_variables),
        ("DOC-105", _ERROR, placement.late_settings, certain.late_settings),
        ("DOC-107", _WARNING, placement.missing_devices, certain.device_names),
        ("DOC-110", _WARNING, placement.all_on_one),
    ),
    Family.DISTRIBUTION: (
        ("DOC-201", _WARNING, placement.no_strategy, certain.no_strategy),
        ("DOC-202", _WARNING, placement.unused_strategy),
        ("DOC-205", _WARNING, placement.uneven_batch),
        ("DOC-208", _WARNING, placement.multi_worker),
        ("DOC-215", _ERROR, placement.outside_scope, certain.outside_scope),
        ("DOC-220", _WARNING, placement.unequal_cards),
        ("ENG-003", _ERROR, certain.optimizer_outside),
        ("RUN-006", _ERROR, placement.loop_without_run),
    ),
    Family.MEMORY: (
        ("DOC-601", _WARNING, memory.models_in_loop),
        ("DOC-602", _WARNING, memory.kept_tensors),
        ("DOC-604", _WARNING, memory.buffers),
        ("DOC-605", _ERROR, memory.does_not_fit, memory.constant_sizes),
        ("DOC-606", _WARNING, memory.large_constants),
    ),
    Family.SPEED: (
        ("DOC-414", _WARNING, speed.double_precision),
        ("DOC-401", _WARNING, speed.slow_input),
        ("DOC-402", _WARNING, speed.host_reads),
        ("DOC-403", _WARNING, speed.retracing),
        ("DOC-407", _WARNING, speed.eager_steps, certain.eager_steps),
        ("DOC-408", _WARNING, speed.repeated_calls, certain.predict_in_loop),
        ("DOC-410", _WARNING, speed.small_batches, certain.never_batched),
        ("DOC-411", _WARNING, speed.slow_callbacks),
        ("DOC-412", _WARNING, speed.outside_of_tensorflow),
    ),
}
RULES = tuple(
    Rule(
        code,
        family,
        severity,
        tuple(checks),
        explains=_EXPLAINS.get(code, ""),
        is_cause=code in _CRASHES,
        also=_ALSO.get(code, ()),
    )
    for family, rows in _TABLE.items()
    for code, severity, *checks in rows
)

GONE = (
    "DEV-103 DEV-104 DOC-003 DOC-005 DOC-006 DOC-102 DOC-103 DOC-106 DOC-109 DOC-203 DOC-207 "
    "DOC-210 DOC-211 DOC-212 DOC-213 DOC-217 DOC-218 DOC-219 DOC-221 DOC-302 DOC-305 DOC-309 "
    "DOC-310 DOC-311 DOC-346 DOC-347 DOC-404 DOC-405 DOC-413 DOC-501 DOC-502 DOC-503 DOC-607 "
    "ENG-064"
).split()
"""Codes of rules of earlier versions: settings may name them still."""


def all_rules() -> tuple[Rule, ...]:
    return RULES


# ---- help pages: the line of an error, and the page of the rule

_ROW = re.compile(r"^\| ([A-Z]+-\d{3}) \| (.+?) \|$", re.MULTILINE)


def explain(code: str) -> str | None:
    """Return the help page of a code, as Markdown; None for an unknown code.

    Example:
        >>> print(explain("data-011"))
        # DATA-011
        <BLANKLINE>
        `in_axes` does not fit the arguments of a step
    """
    code = code.strip().upper()
    row, page = _rows().get(code), _page(code)
    if page is None:
        return None if row is None else f"# {code}\n\n{row}"
    if row is None:
        return page
    raised = f"Raised as {code}: {row}."
    title, _, rest = page.partition("\n")
    return f"{title}\n\n{raised}\n{rest}"


def has_page(code: str) -> bool:
    """Return whether a code has a help page, with wrong and right code."""
    return _page(code) is not None


def _page(code: str) -> str | None:
    rule = next((known for known in RULES if code in (known.code, *known.also)), None)
    path = PAGES / f"{rule.code}.md" if rule is not None else PAGES / "errors" / f"{code}.md"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def known_codes() -> list[str]:
    return sorted({*_rows(), *(code for rule in RULES for code in (rule.code, *rule.also))})


def _rows() -> dict[str, str]:
    return dict(_ROW.findall((PAGES / "errors.md").read_text(encoding="utf-8")))
