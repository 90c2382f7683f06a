"""Install the wheel as somebody would, and use it: the commands, the README's example, the types.

``make wheel-check`` runs it. The virtual environment is new and holds evener's wheel alone; a
``.pth`` file lends it the other packages of ``.venv``, so that TensorFlow need not be installed
again. So this shows that the wheel is whole, not that its requirements can be met: ``make matrix``
installs those.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = ROOT / ".tools/bin/uv"
FOLDER = ROOT / ".tools/wheel-check"
BIN = FOLDER / "env/bin"

# Where an `error` stands, a type checker must find one.
TYPED = """\
import evener

strategy = evener.Strategy(devices="cpu:2", shares=[2, 1])
evener.Strategy(devices=3)  # error
evener.Plan.data_parallel(devices=["cpu:0"]).layout.upper()
evener.Plan.data_parallel(devices=["cpu:0"]).lay_out  # error
evener.Strateggy  # error
"""


def main() -> None:
    """Build, install, and use."""
    run(UV, "build", "--quiet", "--clear", "--wheel", "--no-build-isolation", "--offline",
        "--python", sys.executable, "--out-dir", FOLDER / "dist", ROOT)  # fmt: skip
    (wheel,) = (FOLDER / "dist").glob("*.whl")
    run(UV, "venv", "--quiet", "--clear", "--python", sys.executable, FOLDER / "env")
    run(
        UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", BIN / "python", wheel
    )
    (site,) = FOLDER.glob("env/lib/python*/site-packages")
    (site / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        use(Path(folder), site)
    print(f"{wheel.name} is whole")


def use(folder: Path, site: Path) -> None:
    """Use what was installed, in an empty folder."""
    where = run(BIN / "python", "-c", "import evener; print(evener.__file__)", folder=folder)
    if not Path(where.strip()).is_relative_to(site):
        sys.exit(f"evener comes from {where.strip()}, not from the wheel")
    (folder / "train.py").write_text(readme_example(), encoding="utf-8")
    expect("evener 0.", run(BIN / "evener", "--version", folder=folder))
    expect("cpu:1", run(BIN / "evener", "devices", "--devices", "cpu:2", folder=folder))
    expect("ENG-064", run(BIN / "evener", "doctor", "--explain", "ENG-064", folder=folder))
    schema = "import evener.plan; print(evener.plan.plan_schema()['title'])"
    expect("Plan", run(BIN / "python", "-c", schema, folder=folder))
    run(BIN / "evener", "doctor", "train.py", folder=folder)
    expect("Epoch 3/3", run(BIN / "python", "train.py", folder=folder))
    expect("Epoch 3/3", run(BIN / "evener", "run", "train.py", folder=folder))
    run(BIN / "evener", "audit", "--graph", "step.svg", "train.py", folder=folder)
    check_types(folder)


def check_types(folder: Path) -> None:
    """Hold a type checker's errors in a program against those that it must find."""
    (folder / "typed.py").write_text(TYPED, encoding="utf-8")
    # Else types would be inferred from the sources even if the wheel did not ship py.typed.
    settings = {"useLibraryCodeForTypes": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    checker = [sys.executable, "-m", "basedpyright", "--outputjson", "--level", "error"]
    done = subprocess.run(
        [*checker, "--pythonpath", BIN / "python", "typed.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = json.loads(done.stdout)["generalDiagnostics"]
    found = [error["range"]["start"]["line"] for error in errors]
    wanted = [number for number, line in enumerate(TYPED.splitlines()) if "# error" in line]
    if found != wanted:
        sys.exit(f"a type checker finds errors in lines {found}, not {wanted}:\n{done.stdout}")


def readme_example() -> str:
    """Return the one Python program in the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return example


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Run a command and return what it printed; end if it fails."""
    own = {"CUDA_VISIBLE_DEVICES": "-1", "EVENER_DEVICES": "cpu:2"}
    left_out = ("PYTHONPATH", "TF_CPP_MIN_LOG_LEVEL")
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in left_out} | own,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n"
                 f"{done.stdout}{done.stderr}")  # fmt: skip
    return done.stdout


def expect(text: str, output: str) -> None:
    """End if a text is not in an output."""
    if text not in output:
        sys.exit(f"{text!r} is not in:\n{output}")


if __name__ == "__main__":
    main()
