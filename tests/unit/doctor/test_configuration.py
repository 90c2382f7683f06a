"""Choice of the rules: by options, by pyproject.toml, by comments on a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from evener.doctor import diagnose
from evener.doctor.configuration import Configuration, configuration_for
from evener.errors import RunError

# DOC-201 on line 4, DOC-004 on line 6.
PROGRAM = """\
import keras, tensorflow as tf
m = keras.Sequential([keras.layers.Dense(1)])
m.compile('sgd', 'mse', steps_per_execution=8)
m.fit(x, y){fit}
text = "# evener: ignore"
tf.Session(){name}
"""
BOTH = ["DOC-004", "DOC-201"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "project" / "scripts" / "train.py"
    path.parent.mkdir(parents=True)
    path.write_text(PROGRAM.format(fit="", name=""), encoding="utf-8")
    return path


def codes(script: Path, **options: object) -> list[str]:
    given = {"num_gpus": 2, "run": False, **options}
    return sorted(finding.code for finding in diagnose(script, **given).findings)  # type: ignore[arg-type]


def write_table(script: Path, text: str, *, levels: int = 1) -> Path:
    path = script.parents[levels] / "pyproject.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, BOTH),
        ({"select": ["DOC-2"]}, ["DOC-201"]),
        ({"select": ["doc-201", " DOC-004"]}, BOTH),
        ({"ignore": ["DOC-2"]}, ["DOC-004"]),
        ({"select": ["DOC"], "ignore": ["DOC-004"]}, ["DOC-201"]),
        ({"select": ["DOC-4"]}, []),
        ({"select": []}, []),
    ],
)
def test_codes_and_beginnings_choose_rules(
    options: dict[str, list[str]], expected: list[str], script: Path
) -> None:
    assert codes(script, **options) == expected


def test_that_a_script_is_not_python_is_always_told(script: Path) -> None:
    script.write_text("def f(:", encoding="utf-8")
    assert codes(script, select=["DOC-4"]) == ["DOC-001"]
    assert codes(script, ignore=["DOC-001"]) == []


@pytest.mark.parametrize("option", ["select", "ignore"])
@pytest.mark.parametrize("code", ["DOC-999", "", "DEV-001", "DOC-2011"])
def test_a_code_of_no_rule_is_refused(option: str, code: str, script: Path) -> None:
    with pytest.raises(RunError, match="RUN-011"):
        codes(script, **{option: [code]})


def test_a_close_code_is_named(script: Path) -> None:
    with pytest.raises(RunError, match="Did you mean 'DOC-201'"):
        codes(script, select=["DOC201"])


def test_the_nearest_table_holds(script: Path) -> None:
    write_table(script, "[tool.evener.doctor]\nignore = ['DOC-201']\n", levels=1)
    assert codes(script) == ["DOC-004"]
    write_table(script, "[tool.other]\n", levels=0)
    assert codes(script) == BOTH
    write_table(script, "[tool.evener.doctor]\nselect = ['DOC-2']\ngpus = 1\n", levels=0)
    assert codes(script, num_gpus=None) == []
    assert diagnose(script, run=False).num_gpus == 1


def test_options_win_over_the_table(script: Path) -> None:
    write_table(script, "[tool.evener.doctor]\nselect = ['DOC-4']\nignore = ['DOC-0']\ngpus = 1\n")
    assert configuration_for(script) == Configuration(
        select=("DOC-4",), ignore=("DOC-0",), num_gpus=1
    )
    assert codes(script, select=["DOC"], ignore=[]) == BOTH
    assert codes(script, select=["DOC"]) == ["DOC-201"]
    assert codes(script, select=["DOC"], num_gpus=0) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[tool.evener.doctor]\nselects = []\n", "unknown key `selects`. Did you mean 'select'"),
        ("[tool.evener.doctor]\nselect = 'DOC-201'\n", "`select` is 'DOC-201'"),
        ("[tool.evener.doctor]\nignore = [1]\n", "`ignore` is [1]"),
        ("[tool.evener.doctor]\nignore = ['DOC-999']\n", "`ignore`: The doctor has no rule"),
        ("[tool.evener.doctor]\ngpus = '2'\n", "`gpus` is '2'"),
        ("[tool.evener.doctor]\ngpus = true\n", "`gpus` is True"),
        ("[tool.evener.doctor]\ngpus = -1\n", "`gpus` is -1"),
        ("[tool.evener]\ndoctor = 3\n", "`doctor` is no table"),
        ("tool = 3\n", "`tool` is no table"),
        ("[tool", "cannot be read"),
    ],
)
def test_a_wrong_table_is_refused_with_file_and_key(text: str, told: str, script: Path) -> None:
    path = write_table(script, text)
    with pytest.raises(RunError, match="RUN-012") as caught:
        codes(script, num_gpus=None)
    assert str(path) in str(caught.value) and told in str(caught.value)


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("  # evener: ignore", ["DOC-004"]),
        ("  # evener: ignore[DOC-201]", ["DOC-004"]),
        ("  # noqa  # evener: ignore[DOC-101, doc-201]", ["DOC-004"]),
        ("  # evener:ignore[DOC-2]", ["DOC-004"]),
        ("  # evener: ignore[DOC-301]", BOTH),
        ("  # evener: ignore[]", BOTH),
        ("  # evener: ignored", BOTH),
        ("; '# evener: ignore'", BOTH),
        ("; '# evener: ignore'  # not this", BOTH),
    ],
)
def test_a_comment_on_the_line_takes_a_finding_back(
    comment: str, expected: list[str], script: Path
) -> None:
    script.write_text(PROGRAM.format(fit=comment, name=""), encoding="utf-8")
    assert codes(script) == expected
    found = diagnose(script, num_gpus=2, run=False)
    assert found.num_ignored == len(BOTH) - len(expected)
    assert found.to_dict()["num_ignored"] == found.num_ignored


def test_a_rule_that_is_gone_is_no_error(script: Path) -> None:
    assert codes(script, ignore=["DOC-106", "DOC-201"]) == ["DOC-004"]
    for gone in ("DOC-501", "DEV-103", "DEV-104", "ENG-064"):
        assert codes(script, select=[gone]) == []


def test_fewer_than_no_gpus_are_refused(script: Path) -> None:
    with pytest.raises(RunError, match="RUN-013"):
        codes(script, num_gpus=-1)
