"""Findings for the record of a run: those that evener does not settle itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from evener.doctor import diagnose, diagnosis
from evener.doctor.diagnosis import findings_under_run

# Distribution: DOC-201, or DOC-202, DOC-215 and ENG-003; the program itself: DOC-004.
PLAIN = """\
import keras, tensorflow as tf
m = keras.Sequential([keras.layers.Dense(1)])
m.compile('sgd', 'mse', steps_per_execution=8)
m.fit(x, y)
tf.Session(){comment}
"""
MIRRORED = """\
import keras, tensorflow as tf
strategy = tf.distribute.MirroredStrategy()
m = keras.Sequential([keras.layers.Dense(1)])
with strategy.scope():
    m.compile('sgd', 'mse', steps_per_execution=8)
    m.fit(x, y)
tf.Session()
"""


def written(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("text", [PLAIN.format(comment=""), MIRRORED])
def test_what_evener_distributes_is_no_finding(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    assert len(diagnose(path, num_gpus=2, run=False).findings) > 1
    found = findings_under_run(path, 2)
    assert [each["code"] for each in found["findings"]] == ["DOC-004"]
    assert found["findings"][0]["location"] == f"{path}:{len(text.splitlines())}"
    assert (found["num_ignored"], found["problem"]) == (0, "")


def test_comments_and_the_table_of_the_project_hold(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN.format(comment="  # evener: ignore[DOC-004]"))
    found = findings_under_run(path, 2)
    assert (found["findings"], found["num_ignored"]) == ([], 1)
    (tmp_path / "pyproject.toml").write_text('[tool.evener.doctor]\nignore = ["DOC-0"]\n')
    path = written(tmp_path, PLAIN.format(comment=""))
    assert findings_under_run(path, 2)["findings"] == []


def test_a_wrong_table_is_told_and_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.evener.doctor]\nignore = ["DOC-9999"]\n')
    found = findings_under_run(written(tmp_path, PLAIN.format(comment="")), 2)
    assert found["findings"] == []
    assert "DOC-9999" in found["problem"]


def test_a_fault_of_a_rule_is_told_and_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise IndexError("of a rule")

    monkeypatch.setattr(diagnosis, "judge", fail)
    found = findings_under_run(written(tmp_path, PLAIN.format(comment="")), 2)
    assert found["problem"] == "IndexError: of a rule"
