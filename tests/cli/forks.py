"""Runs programs one after the other, each in a fork of one Python.

That Python has imported the modules that it was given. To import TensorFlow costs more than to
train a small model does. Nothing of it has run before the fork, so that a program finds what it
would in a Python of its own; it ends by itself, with what `atexit` and the hook for uncaught
exceptions do then.

Each line on standard input is a run as JSON; each line of the answer is its exit code:

    {"kind": "evener", "args": ["run", ...], "folder": ..., "stdout": ..., "stderr": ...}

``command`` takes the arguments of evener, and writes to ``modules.json`` in the folder what it has
imported. ``evener`` takes them too, and writes to ``operations.json`` in the folder how
many products of matrices ran on each device. ``child`` takes the file of a request of a
command to its subprocess, and writes its answer beside it. ``one device``
takes a script and its arguments, and gives it TensorFlow's default strategy, which is one device,
for each that it makes.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from evener.base.libraries import paused_collector


def next_run() -> dict[str, Any] | None:
    """Fork for every run; return it in the fork, and None in the end."""
    for line in sys.stdin:
        run = json.loads(line)
        child = os.fork()
        if child == 0:
            return run
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def move_to(run: dict[str, Any]) -> None:
    for name, number in (("stdout", 1), ("stderr", 2)):
        file = os.open(run[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    os.chdir(run["folder"])
    os.environ.update(run["environ"])


def count_products() -> None:
    """Let what a script computes be written down when it has come to its end."""
    from evener.run import session
    from gpu.traced import operations

    original = session.run_as_main

    def run_as_main(script: Any, args: Any, **choices: Any) -> None:
        folder = Path("traced")
        found = operations(lambda: original(script, args, **choices), folder)
        products = Counter(device[-5:] for kind, device in found if "MatMul" in kind)
        Path("operations.json").write_text(json.dumps(products), encoding="utf-8")

    session.run_as_main = run_as_main


if __name__ == "__main__":
    with paused_collector():
        for name in sys.argv[1:]:
            importlib.import_module(name)

    asked = next_run()
    if asked is not None:
        move_to(asked)
        sys.argv = asked["args"]
        if asked["kind"] == "command":
            from evener.cli import main

            sys.argv = ["evener", *sys.argv]
            try:
                main()
            finally:
                Path("modules.json").write_text(json.dumps(list(sys.modules)), encoding="utf-8")
        elif asked["kind"] == "evener":
            from evener.cli import main

            count_products()
            sys.argv = ["evener", *sys.argv]
            main()
        elif asked["kind"] == "child":
            from evener.run.child import main

            sys.argv = ["child", *sys.argv]
            main()
        else:
            import tensorflow as tf

            tf.distribute.MirroredStrategy = lambda *_: tf.distribute.get_strategy()
            runpy.run_path(sys.argv[0], run_name="__main__")
