"""Calls of a program through registries, partials, hooks and settings."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from evener.analysis import Kind, Program, read_program
from evener.doctor.queries.numbers import number
from unit.doctor.table import check_quiet


def read(source: str, folder: Path) -> Program:
    path = folder / "train.py"
    path.write_text("import keras\nimport tensorflow as tf\n" + source, encoding="utf-8")
    return read_program(path)


@pytest.mark.parametrize(
    "source",
    [
        "MODELS = {'b': print, 'a': keras.Sequential}\nkey = 'a'\nMODELS[key]()",
        "from functools import partial\nmake = partial(keras.Sequential, name='m')\nmake()",
        "class A:\n    net = keras.Sequential\n    def go(self):\n        self.net()",
    ],
)
def test_a_thing_of_a_library_is_called_by_another_name(source: str, tmp_path: Path) -> None:
    program = read(source, tmp_path)
    call = program.all_calls[-1]
    assert call.name == "keras.Sequential"
    assert Kind.MODEL in program.kinds(call.module, call.node)


def test_what_a_decorator_of_the_program_puts_around_a_function_is_not_known(
    tmp_path: Path,
) -> None:
    program = read("def own(fn):\n    return fn\n@own\ndef save():\n    pass\nsave()", tmp_path)
    call = program.all_calls[-1]
    assert list(program.targets(call.module, call.node)) == []


def test_a_base_class_calls_what_a_class_made_of_it_overrides(tmp_path: Path) -> None:
    program = read(
        "class Base:\n    def go(self):\n        self.hook()\n    def hook(self):\n        pass\n"
        "class Own(Base):\n    def hook(self):\n        print()\nOwn().go()",
        tmp_path,
    )
    (call,) = (call for call in program.all_calls if ast.unparse(call.node) == "self.hook()")
    found = [where.parents[target] for where, target in program.targets(call.module, call.node)]
    assert {getattr(call, "name", "") for call in found} == {"Base", "Own"}


@pytest.mark.parametrize(
    "source",
    [
        "from absl import flags\nFLAGS = flags.FLAGS\nflags.DEFINE_integer('batch', 8, '')\n"
        "print(FLAGS.batch)",
    ],
)
def test_a_number_is_found_where_it_is_set(source: str, tmp_path: Path) -> None:
    program = read(source, tmp_path)
    call = next(call for call in program.all_calls if call.name == "print")
    found = number(program, call.module, call.node.args[0])
    assert found is not None
    assert found.value == 8


MADE = """
def compiled(fn):
    return tf.function(fn)

def step(x):
    return x * 2

{lines}
"""


def test_a_traced_function_that_is_made_before_the_loop_is_made_once(tmp_path: Path) -> None:
    lines = "go = compiled(step)\nfor i in range(9):\n    go(tf.ones(3))"
    check_quiet("DOC-403", MADE.format(lines=lines), tmp_path)
