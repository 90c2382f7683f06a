"""Wrong usage, help and completion, for which no command waits for TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

import evener
from cli.forked import Run

PLAN = evener.Plan.data_parallel(["cpu:0", "cpu:1"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "train.py": "print('ran')",
        "lesson.ipynb": '{"cells": []}',
        "broken.json": "{",
        "other.json": '{"version": 1}',
        "plan.json": PLAN.to_json(),
        "package/__init__.py": "raise SystemExit('imported too early')",
        "package/inner.py": "x = 1",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "image.json").write_bytes(b"\x89PNG\xff")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run", "Missing argument 'SCRIPT'"),
        ("run --nodevices train.py", "No such option: --nodevices"),
        ("run gone.py", "[RUN-001]"),
        ("run -m gone", "[RUN-021] The module gone cannot be run."),
        ("run -m package", "package is a package without a __main__ module"),
        ("run -m package.gone", "there is no such module"),
        ("run -m train.py", "a file is run without -m"),
        ("run -m .train", "there is no such module"),
        ("run -m sys", "it has no Python source file"),
        ("run --devices gpu0 train.py", "[DEV-002]"),
        ("run --devices cuda:0 train.py", "Did you mean 'gpu:0'?"),
        ("run --shares 1,x train.py", "neither 'even' nor a list of numbers"),
        ("run --shares 0,0 train.py", "[PLAN-009] --shares 0,0: The shares add up to 0"),
        ("run --shares nan,1 train.py", "[PLAN-008]"),
        ("run --devices cpu:2 --shares 1,2,3 train.py", "[PLAN-010]"),
        ("run --plan gone.json train.py", "File 'gone.json' does not exist"),
        ("run --plan broken.json train.py", "[PLAN-021] broken.json: The text of the plan is not"),
        ("run --plan other.json train.py", "[PLAN-024] other.json: the plan is missing the key"),
        ("run --plan image.json train.py", "image.json is not a text file in UTF-8"),
        ("run --plan plan.json --shares 1,2 train.py", "leave out --plan or --shares"),
        ("run --plan plan.json --devices cpu:2 train.py", "leave out --plan or --devices"),
        ("launch train.py", "[RUN-080] The number of workers is missing: --workers N."),
        ("launch --workers 2", "Missing argument 'SCRIPT'"),
        ("launch --workers 0 train.py", "Invalid value for '--workers': 0 is not in the range"),
        ("launch --workers x train.py", "Invalid value for '--workers': 'x' is not a valid int"),
        ("launch --workers 2 gone.py", "[RUN-001]"),
        ("launch --workers 2 -m gone", "[RUN-021]"),
        ("launch --workers 2 --devices gpu0 train.py", "[DEV-002]"),
        (
            "launch --workers 3 --devices cpu:1 --devices cpu:2 train.py",
            "given 2 times for 3 workers; give it once, or 3 times",
        ),
        ("launch --workers 2 --logs train.py train.py", "train.py cannot be written to"),
        ("launch --workers 2 --logs /proc/gone train.py", "/proc/gone cannot be written to"),
        ("launch --workers 2 --heartbeat 0 train.py", "Invalid value for '--heartbeat'"),
        ("launch --workers 2 --restarts -1 train.py", "Invalid value for '--restarts'"),
        ("launch --restarts 2 train.py", "the scheduler of the job replaces"),
        ("launch train.py --workers 2", "[RUN-022] --workers stands after train.py"),
        ("launch --workers 2 --plan auto train.py", "make the plan first"),
        ("launch --ray train.py", "[RUN-084] --ray was given without --workers."),
        ("launch --ray --workers 2 --port 9 train.py", "[RUN-084] --port was given with --ray."),
        ("launch --workers 2 --ray-resources CPU=1 train.py", "[RUN-084] --ray-resources was"),
        ("launch --ray ray://n1:10001 --workers 2 train.py", "[RUN-084] --ray is ray://n1:10001"),
        ("launch --ray local --workers 2 train.py", "[RUN-054] --ray holds an address"),
        (
            "launch --ray --workers 2 --ray-resources gpu=1 train.py",
            "[RUN-089] --ray-resources gpu=1: no resources of a worker.",
        ),
        ("launch --workers 2 train.py --ray", "[RUN-022] --ray stands after train.py"),
        ("audit gone.py", "[RUN-001]"),
        ("audit --devices gpu0 train.py", "[DEV-002]"),
        ("devices --devices cpu:00", "[DEV-003]"),
        ("devices --devices gpu0", "[DEV-002]"),
        ("devices --device all", "No such option"),
        ("devices more", "unexpected extra argument"),
        ("run .", "[RUN-002]"),
        ("run --plan auto --shares 1,2 train.py", "chooses the shares"),
        ("run --plan auto -m lost", "[RUN-021]"),
        ("run --plan . train.py", "cannot be read"),
        ("plan", "give one of a script, --profile, or --model with --cluster"),
        ("plan --model bert-large train.py --cluster a100-8", "a script and --model"),
        ("plan --model bert-large", "--model needs --cluster"),
        ("plan --cluster a.yaml train.py", "[PROF-037]"),
        ("plan --cluster rtx3090 train.py", "[PROF-038]"),
        ("plan --cluster a100-8 --devices cpu:2 train.py", "leave out --cluster or --devices"),
        ("plan --cluster a100-8 --profile costs.json", "--cluster needs a script or --model"),
        ("plan --cluster a100-8 --from-run plan.json train.py", "--from-run needs measurements"),
        ("plan --model bert-huge --cluster a100-8 --batch-size 4", "[PROF-039]"),
        ("plan --model bert-large --cluster a100 --batch-size 4", "[PROF-038]"),
        ("plan --model bert-large --cluster a100-8", "give N, max or auto"),
        ("plan --batch-size 0 train.py", "neither a number of samples above 0"),
        ("plan --batch-size many train.py", "neither a number of samples above 0"),
        ("plan gone.py", "[RUN-001]"),
        ("plan --profile gone.json", "[PROF-006]"),
        ("plan --out gone/plan.json train.py", "cannot be written"),
        ("plan --profile costs.json --from-run gone.json", "[PROF-050]"),
        ("plan --model x --cluster y --from-run plan.json", "--from-run needs measurements"),
        ("run --report-file gone/run.json train.py", "cannot be written"),
        ("plan --devices cpu:0@x train.py", "[DEV-"),
        ("plan --profile costs.json -m", "-m needs the name of a module"),
        ("plan -m gone.train", "[RUN-021]"),
        ("estimate", "Missing argument 'SCRIPT|MODEL'"),
        ("estimate --batch-size 4 bert-larg", "[RUN-042] bert-larg is neither"),
        ("estimate --batch-size 4 bert-larg", "Did you mean 'bert-large'?"),
        ("estimate bert-large", "[RUN-041] The memory of bert-large depends on a batch size"),
        ("estimate bert-large", "Fix: evener estimate --batch-size N bert-large"),
        ("estimate bert-large --batch-size 4", "options go before it: --batch-size 4"),
        ("estimate --batch-size 0 bert-large", "0 is not in the range"),
        ("estimate --batch-size many bert-large", "'many' is not a valid int"),
        ("estimate --batch-size 4 --num-devices 0 bert-large", "0 is not in the range"),
        ("estimate --epochs 3 train.py", "No such option: --epochs"),
        ("estimate gone.py", "[RUN-001]"),
        ("estimate .", "[RUN-002]"),
        ("audit steps:step --epochs 3", "[PLACE-042]"),
        ("audit --batch-size 0 train.py", "x>=1"),
        ("doctor --no-run", "give the program to check"),
        ("doctor --no-run train.py -- --epochs", "not run with --no-run"),
        ("doctor --no-run train.py --epochs", "not run with --no-run"),
        ("doctor --explain RUN-07", "Did you mean"),
        ("doctor --nonsense", "--nonsense"),
        ("doctor --steps 1 --run train.py", "--steps"),
        ("doctor --gpus -1 train.py", "--gpus"),
        ("doctor --gpu-memory much --run train.py", "is not a size"),
        ("doctor --gpu-memory 0 --run train.py", "above 0"),
        ("doctor --no-run --select DOC-201,RUN-10 train.py", "Did you mean 'RUN-010'"),
        ("doctor --no-run --ignore DOC-999 train.py", "RUN-011"),
        ("doctor --no-run lesson.ipynb", "is a notebook"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_it_ends_with_2_before_tensorflow_is_imported(words: str, says: str, command: Run) -> None:
    done = command(*words.split())
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    shown = " ".join(done.stderr.replace("│", " ").split())
    assert says in shown
    assert "Traceback" not in shown
    assert not done.imported & {"tensorflow", "keras", "numpy"}


def test_the_environment_is_read_before_tensorflow_is_imported(folder: Path, command: Run) -> None:
    done = command("devices", EVENER_DEVICES="cpu:00")
    assert (done.returncode, done.stdout) == (2, "")
    assert "[DEV-003] EVENER_DEVICES='cpu:00'" in done.stderr
    done = command("run", "train.py", KERAS_BACKEND="jax")
    assert (done.returncode, done.stdout) == (2, "")
    assert "[RUN-004] The backend of Keras is jax." in done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], ["devices", "run"]),
        (["run"], ["--devices", "--plan", "--shares", "--report", "--json"]),
        *((words, []) for words in (["launch"], ["devices"], ["doctor"], ["audit"])),
    ],
)
def test_h_is_help(words: list[str], named: list[str], command: Run) -> None:
    short, long = (command(*words, option) for option in ("-h", "--help"))
    assert (short.returncode, short.stdout, short.stderr) == (0, long.stdout, "")
    assert short.stdout.startswith("Usage: evener")
    assert all(name in short.stdout for name in named)
    assert "-h, --help" in short.stdout
    heavy = {"tensorflow", "keras", "numpy", "rich", "pynvml"}
    assert not short.imported & heavy


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "complete -o default -F _evener_completion evener"),
        ("zsh", "compdef _evener_completion evener"),
        ("fish", "complete --command evener"),
    ],
)
def test_the_script_of_a_shell_is_printed_without_tensorflow(
    shell: str, line: str, command: Run
) -> None:
    done = command("--show-completion", shell)
    assert done.returncode == 0
    assert line in done.stdout
    assert not done.imported & {"tensorflow", "keras", "numpy", "rich"}


def test_version_and_help_without_a_command(command: Run) -> None:
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"evener {evener.__version__}\n")
    done = command()
    assert "Usage: evener" in done.stdout + done.stderr


def test_an_unknown_shell_is_wrong_usage(command: Run) -> None:
    done = command("--show-completion", "tcsh")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'tcsh' is not one of 'bash', 'zsh'" in done.stderr


@pytest.mark.parametrize(
    ("line", "expected"), [("evener de", ["devices"]), ("evener run --de", ["--devices"])]
)
def test_a_shell_gets_commands_and_options(line: str, expected: list[str], command: Run) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = command(_EVENER_COMPLETE="complete_bash", **words)
    assert done.stdout.split() == expected
    assert not done.imported & {"tensorflow", "keras", "numpy"}


def test_the_script_is_installed_in_the_home_folder(tmp_path: Path, command: Run) -> None:
    done = command("--install-completion", "bash", HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (script,) = tmp_path.rglob("*completion*/evener.sh")
    assert "_evener_completion" in script.read_text(encoding="utf-8")
    assert str(script) in (tmp_path / ".bashrc").read_text(encoding="utf-8")
