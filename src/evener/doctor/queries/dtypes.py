"""The dtypes of tensors, as far as the source code shows."""

from __future__ import annotations

import ast
import functools

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


class Dtypes:
    """Inference of the dtypes of tensors, cached by expression.

    Args:
        program: The program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        # By depth too: near the greatest depth, less of the same expression is known.
        self._known: dict[tuple[ast.AST, int], str] = {}

    def of(self, module: Module, node: ast.AST, depth: int = 0) -> str:
        """Return the dtype of a tensor; ``""`` if it is no tensor or the dtype is not known.

        Numbers of Python have none: TensorFlow converts them to the dtype of the other operand.
        """
        if depth > _DEEPEST:
            return ""
        key = (node, depth)
        if key not in self._known:
            values = self._program.origins(module, node)
            found = {
                "" if value.steps else self._of_value(value.module, value.node, depth)
                for value in values
            }
            self._known[key] = found.pop() if len(found) == 1 else ""
        return self._known[key]

    def _of_value(self, module: Module, node: ast.AST, depth: int) -> str:
        if isinstance(node, ast.UnaryOp):
            return self.of(module, node.operand, depth + 1)
        if isinstance(node, ast.BinOp):
            return self._of_sides(module, node, depth)
        return self._of_call(module, node, depth) if isinstance(node, ast.Call) else ""

    def _of_sides(self, module: Module, node: ast.BinOp, depth: int) -> str:
        left, right = (self.of(module, operand, depth + 1) for operand in (node.left, node.right))
        if left == right:
            return left
        if left and right:
            return ""
        constants = [self._program.constant(module, operand) for operand in (node.left, node.right)]
        return (
            left or right
            if any(isinstance(constant, int | float) for constant in constants)
            else ""
        )

    def _of_call(self, module: Module, node: ast.Call, depth: int) -> str:
        program = self._program
        name = program.name_of(module, node.func)
        dtype = argument(node, None, "dtype")
        if name == "tf.cast":
            return _named(program, module, argument(node, 1, "dtype"))
        if name in _MADE_OF_VALUE:
            if dtype is None and name != "tf.Variable":
                dtype = argument(node, 1, None)
            if dtype is None:
                return _of_literal(node.args[:1])
            return _named(program, module, dtype)
        if name in _MADE_AS_FLOAT:
            dtype = dtype or (argument(node, 1, None) if name in ("tf.zeros", "tf.ones") else None)
            return "float32" if dtype is None else _named(program, module, dtype)
        if name in _KEEP and node.args:
            return self.of(module, node.args[0], depth + 1)
        return "float32" if self._is_of_keras(module, node) else ""

    def _is_of_keras(self, module: Module, node: ast.Call) -> bool:
        """Return whether a call returns the float32 output of a Keras model."""
        program = self._program
        if not program.kinds(module, node.func) & {Kind.MODEL, Kind.LAYER} or self._changes_floats:
            return False
        made = [call.func for _, call in program.made_by(module, node.func)]
        return bool(made) and all(program.name_of(module, function) in _MODELS for function in made)

    @functools.cached_property
    def _changes_floats(self) -> bool:
        """Return whether Keras may compute in another dtype than float32."""
        return any(
            word in line
            for module in self._program.modules
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
