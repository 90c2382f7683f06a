"""The road of the doctor: order and merging of findings, crashes that are explained, its output."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evener.doctor import Diagnosis, Reading, Severity, diagnose, diagnosis, judge, read_program
from evener.doctor.facts import (
    CodeLine,
    Ending,
    Facts,
    HostRead,
    LossUse,
    Outcome,
    Raised,
    Setting,
    Steps,
    VariableUse,
)
from evener.doctor.facts import Traced as TracedFunction
from evener.report.findings import print_diagnosis
from unit.doctor.cases import SCRIPT, codes, facts, line, machine, write

CAUGHT = "import tensorflow as tf\ntf.zeros(1)\ntf.config.set_visible_devices([], 'GPU')\n"


def crash(kind: str, message: str, where: CodeLine | None = None) -> Facts:
    raised = Raised(kind=kind, message=message, where=where)
    return Facts(ending=Ending(outcome=Outcome.CRASHED, seconds=3.0, raised=raised))


def found(seen: Facts) -> list[str]:
    return codes(judge(seen, Reading(script=SCRIPT), machine())[0])


def read_and_judge(path: Path, seen: Facts) -> Any:
    return judge(seen, read_program(path), machine(24))[0]


def test_what_is_wrong_is_before_what_is_slow_and_the_largest_loss_of_time_is_first() -> None:
    steps = Steps(
        kind="fit",
        where=line(1),
        num_steps=20,
        num_timed=19,
        step_seconds=0.1,
        input_seconds=0.07,
        steps_per_epoch=100,
    )
    seen = facts(
        steps=(steps,),
        losses=(
            LossUse(
                name="binary_crossentropy", where=line(2), from_logits=True, activation="sigmoid"
            ),
        ),
        host_reads=(HostRead(where=line(3), num_reads=20, per_step=1.0, seconds=0.2),),
        traced=(
            TracedFunction(
                name="f",
                where=line(4),
                num_calls=20,
                num_traces=20,
                causes=("shape",) * 19,
                seconds=60.0,
            ),
        ),
    )
    findings = judge(seen, Reading(script=SCRIPT), machine())[0]
    assert codes(findings) == ["DOC-321", "DOC-403", "DOC-401", "DOC-402"]
    assert [each.seconds_per_epoch for each in findings] == [None, 285.0, 7.0, 1.0]
    assert "7.0 s per epoch" in " ".join(findings[2].evidence)


def test_one_reason_at_several_lines_is_one_finding() -> None:
    seen = facts(
        host_reads=tuple(
            HostRead(where=line(number), num_reads=20, per_step=1.0, seconds=0.0)
            for number in range(3, 12)
        )
    )
    findings = judge(seen, Reading(script=SCRIPT), machine())[0]
    assert codes(findings) == ["DOC-402"]
    assert findings[0].line == 3
    assert [text for text in findings[0].evidence if text.startswith(("also", "and"))] == [
        *(f"also line {number}" for number in range(4, 9)),
        "and 3 more",
    ]


@pytest.mark.parametrize(
    ("kind", "message", "code"),
    [
        ("AttributeError", "module 'tensorflow' has no attribute 'Session'", "DOC-004"),
        ("ValueError", "Argument(s) not recognized: {'lr': 0.001}", "DOC-004"),
        ("ValueError", "tf.function only supports singleton tf.Variables created on", "RUN-009"),
        ("ResourceExhaustedError", "OOM when allocating tensor", "DOC-605"),
        ("ValueError", "No gradients provided for any variable.", "DOC-330"),
        ("InvalidArgumentError", "label value of 10 which is outside the valid range", "DOC-323"),
        ("KeyError", "'x'", "DOC-011"),
    ],
)
def test_a_crash_has_the_code_of_its_cause(kind: str, message: str, code: str) -> None:
    findings = judge(crash(kind, message), Reading(script=SCRIPT), machine())[0]
    assert codes(findings) == [code]
    assert message in findings[0].what and findings[0].severity is Severity.ERROR


def test_the_whole_text_of_a_crash_is_told() -> None:
    message = "first\n" + "\n".join(f"detail {number}" for number in range(30))
    findings = judge(crash("TypeError", message), Reading(script=SCRIPT), machine())[0]
    assert {"detail 0", "detail 29"} <= set(findings[0].evidence)


def test_a_crash_is_evidence_of_the_finding_that_explains_it(tmp_path: Path) -> None:
    path = write(CAUGHT, tmp_path)
    message = "Visible devices cannot be modified after being initialized"
    at = CodeLine(file=str(path), line=3)
    setting = Setting(name="set_visible_devices", value="", where=at, is_late=True)
    ended = crash("RuntimeError", message, at)
    findings = read_and_judge(path, dataclasses.replace(ended, settings=(setting,)))
    late = [each for each in findings if each.code == "DOC-105"]
    assert findings[0] is late[0] and "DOC-011" not in codes(findings)
    assert any(message in text for text in late[0].evidence)


def test_a_crash_where_gradients_are_applied_shows_that_there_are_none(tmp_path: Path) -> None:
    path = write("import tensorflow as tf\nadam.apply_gradients(pairs)\nprint()", tmp_path)
    lost = VariableUse(
        name="w", shape=(4, 4), dtype="float32", trainable=True, num_gradients=1, num_none=1
    )
    for number, code in ((2, "DOC-330"), (3, "DOC-011")):
        at = CodeLine(file=str(path), line=number)
        ended = crash("ValueError", "not enough values to unpack", at)
        findings = read_and_judge(path, dataclasses.replace(ended, variables=(lost,)))
        assert findings[0].code == code


def test_a_run_that_reached_steps_decides_on_them(tmp_path: Path) -> None:
    path = write("tf.Session()", tmp_path)
    assert codes(judge(None, read_program(path), machine(24))[0]) == ["DOC-004"]
    assert read_and_judge(path, facts()) == ()


def test_a_program_that_cannot_be_read_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("def f(:", encoding="utf-8")
    told = diagnose(path)
    assert (codes(told.findings), told.facts) == (["DOC-001"], None)
    assert codes(diagnose(tmp_path / "absent.py").findings) == ["DOC-002"]
    path.write_text("import broken", encoding="utf-8")
    (tmp_path / "broken.py").write_text("def f(:", encoding="utf-8")
    assert codes(diagnose(path, run=False).findings) == ["DOC-001"]


def test_unequal_gpus_can_be_assumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "surroundings_here", lambda: machine())
    path = write("strategy = tf.distribute.MirroredStrategy()", tmp_path)
    told = diagnose(path, run=False, devices="gpu:0@24GiB,gpu:1@12GiB")
    assert (told.num_gpus, codes(told.findings)) == (2, ["DOC-220"])
    assert "gpu:1 12" in " ".join(told.findings[0].evidence)
    assert codes(diagnose(path, run=False, devices="gpu:0@24GiB,gpu:1@24GiB").findings) == []


@pytest.mark.parametrize(
    ("there", "wanted", "judged", "is_assumed"),
    [(0, None, 2, True), (0, 0, 0, False), (0, 4, 4, False), (1, None, 1, False), (3, 2, 2, False)],
)
def test_the_number_of_gpus_is_what_was_said_else_what_is_there_else_two(
    there: int, wanted: int | None, judged: int, is_assumed: bool
) -> None:
    around = machine(*([24] * there)).judged_for(wanted)
    assert (len(around.gpus), around.is_assumed) == (judged, is_assumed)
    assert len(around.machine.gpus) == there


def printed(told: Diagnosis) -> str:
    out = io.StringIO()
    print_diagnosis(told, Console(file=out, width=100))
    return out.getvalue()


def test_the_last_line_says_what_was_not_judged() -> None:
    read = Diagnosis(script=SCRIPT, findings=())
    assert "Read only: not judged: numbers, input, memory" in printed(read)
    ran = dataclasses.replace(read, facts=facts())
    assert "nothing found. The program was run: 20 steps in 5.0 s, enough." in printed(ran)
    stopped = dataclasses.replace(read, facts=crash("KeyError", "x"))
    assert "0 steps in 3.0 s, crashed; not judged: numbers" in printed(stopped)


def test_json_has_the_run_and_what_is_not_judged() -> None:
    findings = judge(facts(), Reading(script=SCRIPT), machine())[0]
    told = Diagnosis(script=SCRIPT, findings=findings, facts=facts()).to_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["run"] == {"outcome": "enough", "seconds": 5.0, "steps": 20}
    assert (told["fine"], told["not_judged"]) == (True, "")
