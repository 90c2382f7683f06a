"""Writes docs/sharded_operations.md: which public layers and operations are computed in parts.

    .venv/bin/python tools/sharding_table.py [NAMES]

With a pattern of names it prints how these are partitioned, and writes nothing.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"
# The tables of calls are those of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import tensorflow as tf

from exactness.stand_ins import make_stand_ins
from multi_device.public_names.document import PATH, written
from multi_device.public_names.namespaces import missing, recipes
from multi_device.public_names.verdicts import Call, Verdict, verdict


def main() -> None:
    """Partition every call and write the document."""
    tf.get_logger().setLevel("ERROR")
    make_stand_ins()
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    found: dict[str, Verdict] = {}
    for name, recipe in recipes().items():
        if re.search(pattern, name):
            found[name] = verdict(Call(name, recipe))
            if pattern:
                print(name, found[name])
    if not pattern:
        assert not missing(), f"No table says how to call {missing()}"
        PATH.write_text(written(found))


if __name__ == "__main__":
    main()
