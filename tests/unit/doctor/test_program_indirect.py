"""Following of what a program calls by way of registries, decorators, hooks and settings."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from evener.doctor.program import Kind, Program, read_program
from evener.doctor.questions.numbers import number
from unit.doctor.table import check_finds, check_quiet

WRAPPER = """
import functools

def logged(fn):
    @functools.wraps(fn)
    def inner(*args):
        return fn(*args)
    return inner

@logged
def save():
    pass

save()
"""


def read(source: str, folder: Path) -> Program:
    path = folder / "train.py"
    path.write_text("import keras\nimport tensorflow as tf\n" + source, encoding="utf-8")
    return read_program(path)


def names_called(program: Program, written: str) -> set[str]:
    """Return the functions to which the calls lead that are written so."""
    return {
        getattr(target, "name", "")
        for call in program.all_calls
        if ast.unparse(call.node) == written
        for _, target in program.targets(call.module, call.node)
    }


@pytest.mark.parametrize(
    "source",
    [
        "MODELS = {}\nMODELS['a'] = keras.Sequential\nMODELS['a']()",
        "MODELS = {'b': print, 'a': keras.Sequential}\nkey = 'a'\nMODELS[key]()",
        "MODELS = dict(b=print, a=keras.Sequential)\nMODELS['a']()",
        "from functools import partial\nmake = partial(keras.Sequential, name='m')\nmake()",
        "class A:\n    net = keras.Sequential\n    def go(self):\n        self.net()",
    ],
)
def test_a_thing_of_a_library_is_called_by_another_name(source: str, tmp_path: Path) -> None:
    program = read(source, tmp_path)
    call = program.all_calls[-1]
    assert call.name == "keras.Sequential"
    assert Kind.MODEL in program.kinds(call.module, call.node)


def test_a_registry_gives_what_its_decorator_was_given(tmp_path: Path) -> None:
    program = read(
        "FNS = {}\ndef register(fn):\n    FNS[fn.__name__] = fn\n    return fn\n"
        "@register\ndef one():\n    pass\n@register\ndef two():\n    pass\nFNS[input()]()",
        tmp_path,
    )
    assert names_called(program, "FNS[input()]()") == {"one", "two"}
    assert names_called(program, "one()") == set()


def test_a_decorated_function_is_called_through_its_wrapper(tmp_path: Path) -> None:
    program = read(WRAPPER, tmp_path)
    assert names_called(program, "save()") == {"inner"}
    assert names_called(program, "fn(*args)") == {"save"}


def test_a_base_class_calls_what_a_class_made_of_it_overrides(tmp_path: Path) -> None:
    program = read(
        "class Base:\n    def go(self):\n        self.hook()\n    def hook(self):\n        pass\n"
        "class Own(Base):\n    def hook(self):\n        print()\nOwn().go()",
        tmp_path,
    )
    (call,) = (call for call in program.all_calls if ast.unparse(call.node) == "self.hook()")
    found = [where.parents[target] for where, target in program.targets(call.module, call.node)]
    assert {getattr(one, "name", "") for one in found} == {"Base", "Own"}


@pytest.mark.parametrize(
    "source",
    [
        "from types import SimpleNamespace as N\nc = N(data=N(batch=8))\nprint(c.data.batch)",
        "from absl import flags\nFLAGS = flags.FLAGS\nflags.DEFINE_integer('batch', 8, '')\n"
        "print(FLAGS.batch)",
        "import queue\nq = queue.Queue()\nq.put((8, 'x'))\na, b = q.get()\nprint(a)",
        "class Loader:\n    def __iter__(self):\n        yield 8\nfor a in Loader():\n    print(a)",
        "sizes = dict(zip(('a', 'b'), [8, 8]))\nprint(sizes['a'])",
    ],
)
def test_a_number_is_found_where_it_is_set(source: str, tmp_path: Path) -> None:
    program = read(source, tmp_path)
    call = next(one for one in program.all_calls if one.name == "print")
    found = number(program, call.module, call.node.args[0])
    assert found is not None
    assert found.value == 8


CALLBACK = """
class Thaw(keras.callbacks.Callback):
    def {hook}(self, epoch, logs=None):
        self.model.layers[0].trainable = True{mark}
        {more}

model = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(512), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
"""


def test_what_a_callback_thaws_does_not_train(tmp_path: Path) -> None:
    mark = "  # finding: DOC-308"
    check_finds("DOC-308", CALLBACK.format(hook="on_epoch_end", mark=mark, more=""), tmp_path)


@pytest.mark.parametrize(
    ("hook", "more"),
    # The step is traced after the first of on_epoch_begin: measured with Keras 3.15.
    [
        ("on_train_begin", ""),
        ("on_epoch_begin", ""),
        ("on_epoch_end", "self.model.make_train_function(force=True)"),
    ],
)
def test_what_a_callback_thaws_in_time_trains(hook: str, more: str, tmp_path: Path) -> None:
    check_quiet("DOC-308", CALLBACK.format(hook=hook, mark="", more=more), tmp_path)


MADE = """
def compiled(fn):
    return tf.function(fn)

def step(x):
    return x * 2

{lines}
"""


def test_a_traced_function_that_a_function_returns_is_made_again(tmp_path: Path) -> None:
    lines = "for i in range(9):\n    go = compiled(step)  # finding: DOC-403\n    go(tf.ones(3))"
    check_finds("DOC-403", MADE.format(lines=lines), tmp_path)


def test_a_traced_function_that_is_made_before_the_loop_is_made_once(tmp_path: Path) -> None:
    lines = "go = compiled(step)\nfor i in range(9):\n    go(tf.ones(3))"
    check_quiet("DOC-403", MADE.format(lines=lines), tmp_path)


RATES = """
import tensorflow as tf

def rates():
    for i in range(9):
        yield {given}

@tf.function
def step(rate):
    return rate * 2

for rate in rates():
    step(rate){mark}
"""


def test_numbers_that_a_generator_computes_trace_anew(tmp_path: Path) -> None:
    program = RATES.format(given="0.1 * i", mark="  # finding: DOC-403")
    check_finds("DOC-403", program, tmp_path)


def test_tensors_that_a_generator_gives_do_not(tmp_path: Path) -> None:
    check_quiet("DOC-403", RATES.format(given="tf.constant(0.1 * i)", mark=""), tmp_path)


OWN_CONTEXT = """
import contextlib
import keras
import tensorflow as tf

@contextlib.contextmanager
def on(name):
    with {entered}:
        yield

inputs = keras.Input((8,))
with on("gpu:1"):{mark}
    outputs = keras.layers.Dense(4)(inputs)
model = keras.Model(inputs, outputs)
"""


def test_a_context_of_ones_own_pins_as_tf_device_does(tmp_path: Path) -> None:
    program = OWN_CONTEXT.format(entered="tf.device(name)", mark="  # finding: DOC-302")
    check_finds("DOC-302", program, tmp_path)


def test_another_context_pins_nothing(tmp_path: Path) -> None:
    check_quiet("DOC-302", OWN_CONTEXT.format(entered="tf.name_scope(name)", mark=""), tmp_path)
