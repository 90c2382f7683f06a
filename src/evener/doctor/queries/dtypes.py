"""The dtypes of tensors, as far as the source code shows."""

from __future__ import annotations

import ast

from evener.analysis import Kind, Module, Program, argument

_DTYPES = frozenset("float16 bfloat16 float32 float64 int8 int32 int64 uint8 bool string".split())
_MADE_AS_FLOAT = ("tf.zeros", "tf.ones", "tf.random.normal", "tf.random.uniform")
_MADE_OF_VALUE = ("tf.constant", "tf.convert_to_tensor", "tf.Variable")
# Functions that return the dtype of their first argument.
_KEEP = (
    "tf.reduce_sum tf.reduce_mean tf.square tf.abs tf.exp tf.sqrt tf.reshape tf.transpose "
    "tf.squeeze tf.expand_dims tf.identity tf.nn.relu tf.nn.softmax tf.add tf.subtract "
    "tf.multiply tf.matmul"
).split()
_MODELS = ("keras.Sequential", "keras.Model", "keras.layers.Dense")
_DEEPEST = 12


def dtype_of(program: Program, module: Module, node: ast.AST, depth: int = 0) -> str:
    """Return the dtype of a tensor; ``""`` if it is no tensor or the dtype is not known.

    Python's own numbers have none: TensorFlow gives them that of the other side.
    """
    if depth > _DEEPEST:
        return ""
    found = {
        _of_value(program, value.module, value.node, depth) if not value.steps else ""
        for value in program.origins(module, node)
    }
    return found.pop() if len(found) == 1 else ""


def _of_value(program: Program, module: Module, node: ast.AST, depth: int) -> str:
    if isinstance(node, ast.UnaryOp):
        return dtype_of(program, module, node.operand, depth + 1)
    if isinstance(node, ast.BinOp):
        sides = {dtype_of(program, module, one, depth + 1) for one in (node.left, node.right)}
        numbers = [program.constant(module, one) for one in (node.left, node.right)]
        if any(isinstance(one, int | float) for one in numbers):
            sides -= {""}
        return sides.pop() if len(sides) == 1 else ""
    return _of_call(program, module, node, depth) if isinstance(node, ast.Call) else ""


def _of_call(program: Program, module: Module, node: ast.Call, depth: int) -> str:
    name = program.name_of(module, node.func)
    dtype = argument(node, None, "dtype")
    if name == "tf.cast":
        return _named(program, module, argument(node, 1, "dtype"))
    if name in _MADE_OF_VALUE:
        if dtype is None and name != "tf.Variable":
            dtype = argument(node, 1, None)
        return _named(program, module, dtype) if dtype is not None else _of_literal(node.args[:1])
    if name in _MADE_AS_FLOAT:
        dtype = dtype or (argument(node, 1, None) if name in ("tf.zeros", "tf.ones") else None)
        return "float32" if dtype is None else _named(program, module, dtype)
    if name in _KEEP and node.args:
        return dtype_of(program, module, node.args[0], depth + 1)
    if program.kinds(module, node.func) & {Kind.MODEL, Kind.LAYER} and not _changes_floats(program):
        made = [one.func for _, one in program.made_by(module, node.func)]
        if made and all(program.name_of(module, one) in _MODELS for one in made):
            return "float32"
    return ""


def _changes_floats(program: Program) -> bool:
    """Return whether Keras may compute in another dtype than float32."""
    return any(
        word in line
        for module in program.modules
        for line in module.lines
        for word in ("floatx", "olicy", "float16", "float64")
    )


def _of_literal(given: list[ast.expr]) -> str:
    try:
        value: object = ast.literal_eval(given[0]) if given else None
    except ValueError:
        return ""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    kinds = {bool: "bool", int: "int32", float: "float32", str: "string"}
    return kinds.get(type(value), "")


def _named(program: Program, module: Module, node: ast.expr | None) -> str:
    """Return the dtype that an expression names, such as ``tf.float32`` or ``"int64"``."""
    constant = program.constant(module, node)
    name = constant if isinstance(constant, str) else program.name_of(module, node or ast.Pass())
    name = name.removeprefix("tf.").removeprefix("np.")
    return name if name in _DTYPES else ""
