"""Run a smoke suite with other versions of Python, TensorFlow and Keras.

``make matrix`` runs it; ``make matrix ARGS=3.11-2.20-3.12`` runs one combination, and words after
``--`` go to pytest. Each combination gets a virtual environment below ``.tools/matrix``, which
stays there. uv looks for each Python on the PATH. A combination whose Python is missing is not
run, and the table at the end says so.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = ROOT / ".tools/bin/uv"

# Python, TensorFlow, Keras: every version of each at least once, and both ends of the ranges.
COMBINATIONS = (
    ("3.11", "2.20", "3.12"),
    ("3.11", "2.21", "3.13"),
    ("3.13", "2.20", "3.14"),
    ("3.12", "2.21", "3.15"),
    ("3.13", "2.21", "3.15"),
)
SUITE = (
    "tests/unit/base/test_libraries.py",
    "tests/unit/_tf_private",
    "tests/exactness/test_models.py",
    "tests/exactness/test_batchnorm.py",
    "tests/exactness/test_random.py",
    "tests/exactness/test_optimizers.py",
    "tests/exactness/test_stages.py",
    "tests/cli/test_run.py",
)
# Cases that fail in Keras itself, without evener, on one device.
BROKEN_IN_KERAS = {
    # Causal attention over masked tokens: the mask of the loss has the wrong shape. And Muon
    # looks up its momentums by `path`, which variables of TensorFlow do not have.
    "3.12": ("transformer", "muon"),
    "3.13": ("transformer",),
}
TEST_TOOLS = (
    "hypothesis",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "scikit-learn",
    "tensorboard",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Minor versions that are tested together."""

    python: str
    tensorflow: str
    keras: str

    def __str__(self) -> str:
        """Return the combination as it is named on the command line."""
        return f"{self.python}-{self.tensorflow}-{self.keras}"

    @property
    def environment(self) -> Path:
        """The folder of its packages."""
        return ROOT / ".tools/matrix" / str(self)


def main() -> None:
    """Run the suite for the combinations on the command line, or for all."""
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    chosen = [Combination(python=p, tensorflow=t, keras=k) for p, t, k in COMBINATIONS]
    unknown = set(words[:end]) - set(map(str, chosen))
    if unknown:
        sys.exit(f"not in the matrix: {', '.join(unknown)}; it has {' '.join(map(str, chosen))}")
    chosen = [
        combination for combination in chosen if not words[:end] or str(combination) in words[:end]
    ]
    outcomes = {combination: outcome(combination, words[end + 1 :]) for combination in chosen}
    print("\nPython-TensorFlow-Keras")
    for combination, text in outcomes.items():
        print(f"  {combination}: {text}")
    sys.exit(any(text == "failed" for text in outcomes.values()))


def outcome(combination: Combination, pytest_args: list[str]) -> str:
    """Install a combination, run the suite, and return its outcome."""
    print(f"\n== {combination}", flush=True)
    python = combination.environment / "bin/python"
    if not python.exists():
        make = [UV, "venv", "--quiet", "--python", combination.python, combination.environment]
        if subprocess.run(make, check=False).returncode != 0:
            return f"not run: there is no Python {combination.python}"
    install = [UV, "pip", "install", "--quiet", "--python", python, *requirements(combination)]
    if subprocess.run(install, check=False).returncode != 0:
        return "failed"
    left_out = " or ".join(BROKEN_IN_KERAS.get(combination.keras, ()))
    choice = ["-k", f"not ({left_out})"] if left_out else []
    # evener itself comes from src: pyproject.toml puts that on the path of pytest.
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *choice, *pytest_args, *SUITE]
    return "failed" if subprocess.run(tests, cwd=ROOT, check=False).returncode else "passed"


def requirements(combination: Combination) -> list[str]:
    """Return what evener needs, TensorFlow and Keras of the combination, and the test tools."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needed = tomllib.loads(text)["project"]["dependencies"]
    return [
        *needed,
        *TEST_TOOLS,
        f"tensorflow=={combination.tensorflow}.*",
        f"keras=={combination.keras}.*",
    ]


if __name__ == "__main__":
    main()
