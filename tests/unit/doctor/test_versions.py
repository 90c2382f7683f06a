"""Conditions about versions are known for the installed one; all others are not known."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from evener.analysis import read_program
from evener.doctor.queries.versions import holds

HEAD = """\
import keras
import tensorflow as tf
from packaging import version
from distutils.version import LooseVersion
major = int(tf.__version__.split(".")[0])
short = tf.__version__[:3]
if other: changed = tf.__version__
changed = "1.15"
"""
HOLDS = {
    # TensorFlow 2.21, Keras 3.15; two texts are compared as Python compares texts.
    "tf.__version__ >= '2.0.0'": True,
    "tf.__version__ >= '2.9'": False,
    "tf.version.VERSION.startswith('2.')": True,
    "tf.__version__.startswith('1')": False,
    "tf.__version__[0] == '2'": True,
    "tf.__version__[0] == 2": None,
    "short == '2.2'": True,
    "major >= 2": True,
    "2 > major": False,
    "int(tf.__version__[0]) < 2": False,
    "float(tf.__version__[:3]) >= 2.0": True,
    "LooseVersion(tf.__version__) >= LooseVersion('2.9')": True,
    "LooseVersion(tf.__version__) < '2.0.0'": False,
    "version.parse(tf.__version__) < version.parse('2.4')": False,
    "version.parse(keras.__version__) >= version.parse('3.0.0')": True,
    "version.parse(keras.__version__).major == 3": None,
    "not tf.__version__ >= '2.0.0'": False,
    "tf.__version__ >= '2' and debug": None,
    "tf.__version__ < '2' and debug": False,
    "tf.__version__ >= '2' or debug": True,
    "tf.__version__ < '2' or debug": None,
    "tf.__version__ >= '2' and major == 2": True,
    "tf.__version__ in good": None,
    "changed >= '2'": None,
    "np.__version__ >= '1'": None,
    "debug": None,
    "1 < 2": None,
    "version.parse(tf.__version__) > version.parse('2.21.0rc1')": None,
}


@pytest.mark.parametrize(("test", "expected"), HOLDS.items())
def test_what_holds(test: str, expected: bool | None, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{HEAD}if {test}:\n    pass\n", encoding="utf-8")
    program = read_program(path)
    (module,) = program.modules
    branch = module.tree.body[-1]
    assert isinstance(branch, ast.If)
    assert holds(program, module, branch.test) is expected
