"""The dtypes of tensors, as far as the text tells."""

from __future__ import annotations

import ast
import functools

from evener.doctor.program import Kind, Module, Program, argument
from evener.doctor.program.scopes import Step

_DTYPE = (
    "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 bool string"
).split()
_FLOATS = ("tf.zeros", "tf.ones", "tf.eye", "tf.linspace", "tf.random.normal", "tf.random.uniform")
# Functions that give the dtype of what they are given.
_SAME = (
    "tf.reduce_* tf.math.reduce_* tf.square tf.math.square tf.abs tf.math.abs tf.negative tf.exp "
    "tf.math.exp tf.math.log tf.sqrt tf.math.sqrt tf.reshape tf.transpose tf.squeeze "
    "tf.expand_dims tf.identity tf.stop_gradient tf.clip_by_value tf.sigmoid tf.nn.relu "
    "tf.nn.softmax tf.nn.sigmoid tf.tanh tf.zeros_like tf.ones_like tf.maximum tf.minimum "
    "tf.add tf.subtract tf.multiply tf.matmul tf.tile tf.gather tf.concat tf.stack tf.round"
).split()
_COMPARE = ("tf.equal", "tf.not_equal", "tf.greater", "tf.less", "tf.math.equal", "tf.math.greater")
_NUMPY_FLOATS = (
    "np.random.rand",
    "np.random.randn",
    "np.random.normal",
    "np.random.uniform",
    "np.random.random",
    "np.random.standard_normal",
    "np.zeros",
    "np.ones",
    "np.linspace",
    "np.random.random_sample",
)
_DATASET_STAYS = ("batch", "shuffle", "prefetch", "repeat", "cache", "take", "skip", "padded_batch")


class Dtypes:
    """Tells the dtypes of expressions of a program.

    Args:
        program: The program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[tuple[ast.AST, tuple[Step, ...]], str] = {}

    def of(self, module: Module, node: ast.AST, steps: tuple[Step, ...] = ()) -> str:
        """Return the dtype of a tensor or array; ``""`` if it is none or not known.

        Python's own numbers have none: TensorFlow gives them that of the other side.
        """
        key = (node, steps)
        if key not in self._known:
            self._known[key] = ""  # For circles.
            self._known[key] = self._of(module, node, steps)
        return self._known[key]

    def _of(self, module: Module, node: ast.AST, steps: tuple[Step, ...]) -> str:
        found: set[str] = set()
        for value in self._program.origins(module, node, steps):
            if value.node is node and not isinstance(node, ast.Call | ast.BinOp | ast.UnaryOp):
                return ""
            found.add(self._of_value(value.module, value.node, value.steps))
        return found.pop() if len(found) == 1 else ""

    def _of_value(self, module: Module, node: ast.AST, steps: tuple[Step, ...]) -> str:
        if isinstance(node, ast.UnaryOp) and not steps:
            return self.of(module, node.operand)
        if isinstance(node, ast.BinOp) and not steps:
            return self._of_arithmetic(module, node)
        if isinstance(node, ast.Compare):
            sides = [self.of(module, one) for one in (node.left, *node.comparators)]
            return "bool" if any(sides) else ""
        if not isinstance(node, ast.Call):
            return ""
        name = self._program.name_of(module, node.func)
        if steps:
            return self._of_element(module, node, steps)
        if name:
            return self._of_library(module, node, name)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method == "astype":
            return self.named(module, node.args[0]) if node.args else ""
        kinds = self._program.kinds(module, node.func)
        if kinds & {Kind.MODEL, Kind.LAYER}:
            return self._of_model(module, node)
        return ""

    def _of_model(self, module: Module, node: ast.Call) -> str:
        """Return float32 for models whose last layer surely computes in it."""
        if self._computes_in_other:
            return ""
        values = self._program.origins(module, node.func)
        for value in values:
            if not isinstance(value.node, ast.Call):
                return ""
            name = self._program.name_of(value.module, value.node.func)
            if name not in ("keras.Sequential", "keras.Model", "keras.layers.Dense"):
                return ""
        return "float32"

    @functools.cached_property
    def _computes_in_other(self) -> bool:
        """Return whether a layer, or Keras as a whole, may be told another dtype than float32."""
        for call in self._program.calls("keras.*"):
            plain = call.name.rpartition(".")[2]
            if "floatx" in plain or "policy" in plain.lower() or plain == "TextVectorization":
                return True
            given = (*call.node.args, *(keyword.value for keyword in call.node.keywords))
            texts = [ast.unparse(one) for one in given]
            if any("float16" in text or "float64" in text for text in texts):
                return True
        return False

    def _of_library(self, module: Module, node: ast.Call, name: str) -> str:
        given = argument(node, None, "dtype")
        if name in ("tf.cast", "keras.ops.cast"):
            second = argument(node, 1, "dtype")
            return self.named(module, second) if second is not None else ""
        if name in ("tf.constant", "tf.convert_to_tensor", "tf.Variable"):
            second = (
                given if given is not None or name == "tf.Variable" else argument(node, 1, None)
            )
            if second is not None:
                return self.named(module, second)
            return self._of_literal(module, node.args[0]) if node.args else ""
        if name in _FLOATS:
            position = 1 if name in ("tf.zeros", "tf.ones") else None
            second = argument(node, position, "dtype")
            return self.named(module, second) if second is not None else "float32"
        if name in ("tf.shape", "tf.size", "tf.rank") or name == "tf.range":
            if given is not None or argument(node, None, "out_type") is not None:
                return ""
            return "int32" if name != "tf.range" else self._of_range(module, node)
        if name in ("tf.argmax", "tf.math.argmax", "tf.argmin"):
            return "" if argument(node, 2, "output_type") is not None else "int64"
        if name in _COMPARE:
            return "bool"
        if name.startswith("tf.nn.") and name.endswith("cross_entropy_with_logits"):
            logits = argument(node, 1, "logits")
            return "" if logits is None else self.of(module, logits)
        if name.startswith("np."):
            return self._of_numpy(module, node, name, given)
        if node.args and any(
            name == one or (one.endswith("*") and name.startswith(one[:-1])) for one in _SAME
        ):
            first = node.args[0]
            if isinstance(first, ast.List | ast.Tuple) and first.elts:
                first = first.elts[0]
            return self.of(module, first)
        return ""

    def _of_numpy(self, module: Module, node: ast.Call, name: str, given: ast.expr | None) -> str:
        if given is not None:
            return self.named(module, given)
        if name in _NUMPY_FLOATS:
            return "float64"
        if name == "np.random.randint":
            return "int64"
        return ""

    def _of_range(self, module: Module, node: ast.Call) -> str:
        given = [self._program.constant(module, one) for one in node.args]
        if all(isinstance(one, int) for one in given):
            return "int32"
        return "float32" if any(isinstance(one, float) for one in given) else ""

    def _of_literal(self, module: Module, node: ast.AST) -> str:
        constant = self._program.constant(module, node)
        if constant is not None:
            kinds = {bool: "bool", int: "int32", float: "float32", str: "string"}
            return kinds.get(type(constant), "")
        if isinstance(node, ast.List | ast.Tuple):
            found = {self._of_literal(module, one) for one in node.elts}
            if found == {"int32", "float32"}:
                return "float32"
            return found.pop() if len(found) == 1 else ""
        if isinstance(node, ast.UnaryOp):
            return self._of_literal(module, node.operand)
        return self.of(module, node)

    def _of_arithmetic(self, module: Module, node: ast.BinOp) -> str:
        left, right = self.of(module, node.left), self.of(module, node.right)
        sides = {left, right} - {""}
        if len(sides) != 1:
            return ""
        other = node.right if left else node.left
        # What is not known on the other side may change the dtype of NumPy arrays, not tensors.
        known = left == right or isinstance(self._program.constant(module, other), int | float)
        found = sides.pop()
        if isinstance(node.op, ast.Div) and found.startswith(("int", "uint")):
            return "float64" if known else ""
        return found if known or Kind.TENSOR in self._program.kinds(module, other) else ""

    def _of_element(self, module: Module, node: ast.Call, steps: tuple[Step, ...]) -> str:
        """Return the dtype of an element of a dataset, by what it was made of."""
        waiting: list[tuple[Module, ast.AST]] = [(module, node)]
        while waiting:
            where, one = waiting.pop()
            if not isinstance(one, ast.Call) or not isinstance(one.func, ast.Attribute):
                return ""
            if self._program.name_of(where, one.func) == "tf.data.Dataset.from_tensor_slices":
                return self._of_slices(where, one, steps)
            method = one.func.attr
            if method.endswith("distribute_dataset") and one.args:
                before = one.args[0]
            elif method in _DATASET_STAYS:
                before = one.func.value
            else:
                return ""
            values = self._program.origins(where, before)
            if len(values) != 1 or values[0].steps:
                return ""
            waiting.append((values[0].module, values[0].node))
        return ""

    def _of_slices(self, module: Module, node: ast.Call, steps: tuple[Step, ...]) -> str:
        if not node.args or steps[0] != "each":
            return ""
        return self.of(module, node.args[0], steps[1:])

    def named(self, module: Module, node: ast.expr) -> str:
        """Return the dtype that an expression names, such as ``tf.float32`` or ``"int64"``."""
        constant = self._program.constant(module, node)
        name = str(constant) if isinstance(constant, str) else ""
        if not name:
            full = self._program.name_of(module, node)
            base, _, name = full.rpartition(".")
            if base not in ("tf", "np", "tf.dtypes"):
                return {"float": "float64", "int": "int64", "bool": "bool"}.get(full, "")
        name = {"double": "float64", "half": "float16", "bool_": "bool"}.get(name, name)
        return name if name in _DTYPE else ""


@functools.lru_cache(maxsize=4)
def dtypes_of(program: Program) -> Dtypes:
    """Return what tells the dtypes of a program."""
    return Dtypes(program)
