"""Three workers of unlike devices train a model; one is killed in the middle, and nothing is lost.

make demo-machines
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

PROGRAM = Path(__file__).with_name("train.py")
KILLED_AFTER = "Epoch 4/"


def main() -> int:
    """Train on three workers and on one device, and compare the weights."""
    with tempfile.TemporaryDirectory(prefix="evener-demo-") as name:
        folder = Path(name)
        print("Three workers, with 1, 2 and 1 devices. Worker 1 is killed in the fourth epoch.\n")
        code = train_on_workers(folder / "workers")
        if code:
            return code
        print("\nThe same program on one device:\n", flush=True)
        alone = [sys.executable, "-m", "evener", "run", "--devices", "cpu:1", str(PROGRAM)]
        subprocess.run([*alone, str(folder / "one")], check=True)
        return compare(folder / "workers", folder / "one")


def train_on_workers(folder: Path) -> int:
    """Train with `evener launch`, and kill worker 1; return the exit code."""
    words = [sys.executable, "-m", "evener", "launch", "--workers", "3"]
    for devices in ("cpu:1", "cpu:2", "cpu:1"):
        words += ["--devices", devices]
    job = subprocess.Popen(
        [*words, str(PROGRAM), str(folder)], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert job.stdout is not None
    for line in job.stdout:
        print(line, end="", flush=True)
        if line.startswith(KILLED_AFTER):
            os.kill(process_of_worker(1, folder), signal.SIGKILL)
            print("(worker 1 was killed)", flush=True)
    return job.wait()


def process_of_worker(index: int, folder: Path) -> int:
    """Return the process of a worker of the job that writes to a folder."""
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            words = (process / "cmdline").read_text().split("\0")
            environ = (process / "environ").read_text().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        job = next((text[11:] for text in environ if text.startswith("EVENER_JOB=")), None)
        if job and str(folder) in words and json.loads(job)["index"] == index:
            return int(process.name)
    raise SystemExit(f"worker {index} is not running")


def compare(first: Path, second: Path) -> int:
    """Print the difference of two models; return 1 if they are not the same up to rounding."""
    # The models are only read: no device is needed, and nothing is said of those that are missing.
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    import keras

    pair = [keras.models.load_model(folder / "model.keras") for folder in (first, second)]
    weights = zip(pair[0].get_weights(), pair[1].get_weights(), strict=True)
    difference = max(float(np.abs(a - b).max()) for a, b in weights)
    print(f"\nLargest difference of a weight from one device: {difference:.1e}")
    return int(difference > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
