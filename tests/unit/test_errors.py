from __future__ import annotations

import ast
import inspect
import pickle
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import evener
from evener.errors import (
    CheckpointError,
    DataError,
    DeviceError,
    EngineError,
    EvenerError,
    EvenerWarning,
    PlacementError,
    PlanError,
    ProfileError,
    RunError,
    did_you_mean,
    house_form,
    warn,
)

TESTS = Path(__file__).parents[1]
SOURCES = Path(evener.__file__).parent
CODE = re.compile(r"[A-Z]{3,6}-\d{3}")
PREFIXES = {
    "DeviceError": "DEV",
    "PlanError": "PLAN",
    "EngineError": "ENG",
    "DataError": "DATA",
    "RunError": "RUN",
    "PlacementError": "PLACE",
    "ProfileError": "PROF",
    "CheckpointError": "CKPT",
}
KINDS = [
    CheckpointError,
    DeviceError,
    PlanError,
    EngineError,
    DataError,
    RunError,
    PlacementError,
    ProfileError,
]


def test_the_message_has_the_house_form() -> None:
    error = PlanError("PLAN-900", "It does not fit.", why="17.2 of 14.8 GiB.", fix="Add one.")
    assert str(error) == "[PLAN-900] It does not fit.\nWhy: 17.2 of 14.8 GiB.\nFix: Add one."
    assert str(error) == house_form(error.code, error.what, error.why, error.fix)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_stays_whole_across_processes(kind: type[EvenerError]) -> None:
    error = kind("DEV-900", "what", why="why", fix="fix")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (PlanError, ValueError),
        (DataError, ValueError),
        (EngineError, RuntimeError),
        (PlacementError, ValueError),
        (ProfileError, ValueError),
    ],
)
def test_an_error_is_caught_as_the_builtin_that_people_expect(
    kind: type[EvenerError], builtin: type[Exception]
) -> None:
    assert issubclass(kind, EvenerError)
    assert issubclass(kind, builtin)


@pytest.mark.parametrize("missing", ["why", "fix"])
def test_no_error_without_a_reason_and_a_fix(missing: str) -> None:
    answers = {"why": "why", "fix": "fix"}
    del answers[missing]
    with pytest.raises(TypeError, match=missing):
        DeviceError("DEV-900", "what", **answers)


def test_a_warning_names_the_line_that_called_the_function_that_warns() -> None:
    def public_function() -> None:
        warn("DEV-900", "No GPU.", why="The wheel has none.", fix="Install the other.")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        public_function()
        line = inspect.currentframe().f_lineno - 1
    assert [(w.category, w.filename, w.lineno) for w in caught] == [(EvenerWarning, __file__, line)]
    assert str(caught[0].message) == house_form(
        "DEV-900", "No GPU.", "The wheel has none.", "Install the other."
    )


def test_close_names_are_suggested_and_far_ones_are_not() -> None:
    assert did_you_mean("gpu:00", ["cpu:0", "gpu:0"]) == " Did you mean 'gpu:0'?"
    assert did_you_mean("tpu", iter(["cpu:0", "gpu:0"])) == ""
    assert did_you_mean("anything", []) == ""


def test_a_device_is_not_taken_for_one_of_another_kind() -> None:
    assert did_you_mean("gpu:1", ["cpu:0", "cpu:1"]) == ""
    assert did_you_mean("gpu:1", ["cpu:1", "gpu:0"]) == " Did you mean 'gpu:0'?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One call in the sources whose first argument is a code."""

    code: str
    what: str
    call: str
    place: str


def uses_in(source: str, path: str) -> Iterator[Use]:
    for node in ast.walk(ast.parse(source)):
        # A rule of the doctor has the code of the error for the same mistake.
        if not isinstance(node, ast.Call) or ast.unparse(node.func) == "Rule":
            continue
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        code = node.args[0] if node.args else named.get("code")
        what = node.args[1] if len(node.args) > 1 else named.get("what")
        if not isinstance(code, ast.Constant) or not CODE.fullmatch(str(code.value)):
            continue
        yield Use(
            code=str(code.value),
            what="" if what is None else ast.unparse(what),
            call=ast.unparse(node.func).rpartition(".")[2],
            place=f"{path}:{node.lineno}",
        )


def codes_in(source: str) -> set[str]:
    constants = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {str(node.value) for node in constants if CODE.fullmatch(str(node.value))}


def all_uses() -> list[Use]:
    return [
        use
        for path in sorted(SOURCES.rglob("*.py"))
        for use in uses_in(path.read_text(encoding="utf-8"), str(path.relative_to(SOURCES)))
    ]


def test_the_scan_sees_calls_of_every_form() -> None:
    source = """
        raise errors.PlanError("PLAN-901", f"Stage {i}.", why="", fix="")
        warn("DEV-901", what="No GPU.", why="", fix="")
        EngineError(code="ENG-901", what="x", why="", fix="")
        print("Look up PLAN-902.")
    """
    found = list(uses_in(inspect.cleandoc(source), "file.py"))
    assert [(use.code, use.what, use.call) for use in found] == [
        ("PLAN-901", "f'Stage {i}.'", "PlanError"),
        ("DEV-901", "'No GPU.'", "warn"),
        ("ENG-901", "'x'", "EngineError"),
    ]
    assert codes_in(inspect.cleandoc(source)) == {"PLAN-901", "DEV-901", "ENG-901"}


def test_a_code_means_one_thing() -> None:
    places: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for use in all_uses():
        places[use.code][use.what].append(use.place)
    twice = {code: dict(found) for code, found in places.items() if len(found) > 1}
    assert not twice, f"one code, several mistakes: {twice}"


def test_a_code_begins_as_its_kind_of_error_says() -> None:
    wrong = [
        use
        for use in all_uses()
        if use.call in PREFIXES and not use.code.startswith(PREFIXES[use.call] + "-")
    ]
    assert not wrong


def test_every_code_has_a_line_in_the_table() -> None:
    table = (SOURCES / "doctor" / "pages" / "errors.md").read_text(encoding="utf-8")
    used = {use.code for use in all_uses() if use.call in PREFIXES or use.call == "warn"}
    assert len(used) > 50
    missing = {code for code in used if f"\n| {code} | " not in table}
    assert not missing, f"pages/errors.md does not tell of {sorted(missing)}"


def test_every_code_is_tested() -> None:
    used = set[str]().union(
        *(codes_in(path.read_text(encoding="utf-8")) for path in SOURCES.rglob("*.py"))
    )
    tests = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]
    tested = {code for path in tests for code in CODE.findall(path.read_text(encoding="utf-8"))}
    assert not used - tested, f"no test names {sorted(used - tested)}"


def test_an_error_about_odd_names_does_not_command_the_terminal() -> None:
    error = RunError("RUN-001", "No \x1b[2J.", why="\x9b1A", fix="a\tb\r")
    assert str(error) == "[RUN-001] No [2J.\nWhy: 1A\nFix: a\tb"
