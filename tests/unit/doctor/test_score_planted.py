"""Collection of planted faults, and the tool that scores the doctor on it."""

from __future__ import annotations

import ast
import collections
import importlib.util
import json
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).parents[3]
COLLECTION = ROOT / "tests/corpus/planted"
# Prints a finding of the code that the program names, and counts its calls.
FAKE_DOCTOR = """
import json, pathlib, sys
with pathlib.Path(sys.argv[1]).open("a") as calls:
    calls.write(" ".join(sys.argv[2:]) + "\\n")
codes = pathlib.Path(sys.argv[-1]).read_text().split()
print(json.dumps({"findings": [{"code": code, "severity": "error"} for code in codes]}))
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("score_planted", ROOT / "tools/score_planted.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their own module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_collection_is_whole(tool: ModuleType) -> None:
    kinds = tomllib.loads((COLLECTION / "kinds.toml").read_text("utf-8"))
    split = tomllib.loads((COLLECTION / "split.toml").read_text("utf-8"))
    programs = collections.defaultdict(set)
    names = collections.Counter[str]()
    for fault in tool.read_faults(COLLECTION):
        names[fault.name] += 1
        text = (COLLECTION / f"programs/{fault.program}.py").read_text("utf-8")
        planted = ast.dump(ast.parse(fault.planted(text)))
        assert (planted == ast.dump(ast.parse(text))) == (fault.kind == tool.CLEAN), fault.name
        programs[fault.kind].add(fault.program)
        assert fault.kind == tool.CLEAN or (fault.fact and fault.fix), fault.name
    assert len(programs.pop(tool.CLEAN)) >= 20
    assert programs.keys() == kinds.keys()
    assert [kind for kind, where in programs.items() if len(where) < 2] == []
    assert [name for name, count in names.items() if count > 1] == []
    assert set(split["seen_programs"]) == tool.first_half(set().union(*programs.values()))
    assert set(split["seen_kinds"]) == tool.first_half(kinds)


def test_text_to_replace_is_there_once(tool: ModuleType) -> None:
    fault = tool.Fault(program="train", kind="slow", edits=(("a", "b"),))
    assert fault.planted("xa") == "xb"
    with pytest.raises(ValueError, match=r"train--slow: in the program 2 times: 'a'"):
        fault.planted("aa")


def test_score(tool: ModuleType, tmp_path: Path) -> None:
    for name in ("programs", "faults"):
        (tmp_path / name).mkdir()
    # "late" is found first, "lost" behind a code of the clean program, "slow" not at all.
    (tmp_path / "programs/one.py").write_text("DOC-9")
    changes = {"late": "DOC-1 DOC-9", "lost": "DOC-9 DOC-2", "slow": "DOC-9"}
    faults = (
        f'[[fault]]\nkind="{kind}"\nfact="f"\nfix="f"\nold="DOC-9"\nnew="{new}"\n'
        for kind, new in changes.items()
    )
    (tmp_path / "faults/one.toml").write_text("".join(faults))
    accepted = {"late": ["DOC-1"], "lost": ["DOC-2"], "slow": ["DOC-9"]}
    kinds = (f'[{kind}]\ngroup="any"\naccepted={codes}\n' for kind, codes in accepted.items())
    (tmp_path / "kinds.toml").write_text("".join(kinds))
    (tmp_path / "fake.py").write_text(FAKE_DOCTOR)
    calls = tmp_path / "calls"
    doctor = shlex.join([sys.executable, str(tmp_path / "fake.py"), str(calls)])
    options = ["--collection", str(tmp_path), "--store", str(tmp_path / "store"), "--cases"]
    app = tool.typer.Typer()
    app.command()(tool.main)
    for _ in range(2):
        result = CliRunner().invoke(app, [*options, "--doctor", doctor])
        assert result.exit_code == 0, result.output
        marks = dict(line.split()[1::-1] for line in result.output.splitlines() if "one--" in line)
        assert marks == {
            "one--clean": "false",
            "one--late": "first",
            "one--lost": "found",
            "one--slow": "missed",
        }
    # The answers of the first time are used the second time.
    assert collections.Counter(calls.read_text().splitlines()) == {
        "one.py": 4,
        "--no-run one.py": 4,
    }
    kept = json.loads((tmp_path / "store/reading/one--late.json").read_text())
    assert [finding["code"] for finding in kept["answer"]["findings"]] == ["DOC-1", "DOC-9"]
