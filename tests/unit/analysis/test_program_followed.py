"""Following of names where loops and wrappers bind them anew."""

from __future__ import annotations

import ast
from pathlib import Path

from evener.analysis import FUNCTIONS, read_program


def read(source: str, folder: Path):
    path = folder / "train.py"
    path.write_text(source, encoding="utf-8")
    return read_program(path)


def test_a_function_that_is_wrapped_under_its_own_name_is_followed(tmp_path: Path) -> None:
    program = read(
        "import tensorflow as tf\ndef step(x):\n    return x\n"
        "def main(fast):\n    global step\n    if fast:\n"
        "        step = tf.function(step)\n    step(1)\n",
        tmp_path,
    )
    call = program.all_calls[-1]
    found = {getattr(target, "name", "") for _, target in program.targets(call.module, call.node)}
    assert found == {"step"}
    assert all(
        isinstance(target, FUNCTIONS) for _, target in program.targets(call.module, call.node)
    )


def test_what_a_loop_binds_anew_before_the_use_is_not_seen_from_the_round_before(
    tmp_path: Path,
) -> None:
    program = read(
        "for i in range(3):\n    a = 1\n    print(a)\n    a = 2\n    print(a)\n", tmp_path
    )
    first, second = (call for call in program.all_calls if call.name == "print")
    assert program.constant(first.module, first.node.args[0]) == 1
    assert program.constant(second.module, second.node.args[0]) == 2


def test_what_a_loop_binds_further_down_is_seen_in_the_next_round(tmp_path: Path) -> None:
    program = read("a = 1\nfor i in range(3):\n    print(a)\n    a = 2\n", tmp_path)
    (call,) = (call for call in program.all_calls if call.name == "print")
    values = program.origins(call.module, call.node.args[0])
    assert {value.node.value for value in values if isinstance(value.node, ast.Constant)} == {1, 2}
