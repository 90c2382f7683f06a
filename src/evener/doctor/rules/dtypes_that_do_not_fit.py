"""DOC-309: operations on dtypes that TensorFlow does not mix."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Kind, Module, Program
from evener.doctor.questions.dtypes import dtypes_of
from evener.doctor.questions.texts import shown
from evener.doctor.rule import Case, Family, Rule

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.MatMult, ast.FloorDiv, ast.Mod)
_TWO_SIDED = (
    "tf.add tf.math.add tf.subtract tf.math.subtract tf.multiply tf.math.multiply tf.divide "
    "tf.matmul tf.linalg.matmul tf.maximum tf.minimum tf.math.maximum tf.math.minimum tf.pow "
    "tf.math.pow tf.equal tf.math.equal tf.greater tf.less tf.math.squared_difference "
    "tf.not_equal tf.greater_equal tf.less_equal tf.tensordot tf.linalg.matvec"
).split()
_LISTED = ("tf.concat", "tf.stack", "tf.add_n")
_NO_BOOL = (
    "tf.reduce_mean tf.reduce_sum tf.math.reduce_mean tf.math.reduce_sum tf.reduce_max "
    "tf.reduce_min"
).split()
_ONLY_FLOAT = (
    "tf.math.log tf.sqrt tf.math.sqrt tf.exp tf.math.exp tf.sigmoid tf.math.sigmoid tf.nn.sigmoid "
    "tf.nn.softmax tf.math.rsqrt tf.math.reciprocal_no_nan"
).split()
_ASSIGN = ("assign", "assign_add", "assign_sub")


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    if any(
        "enable_numpy_behavior" in call.name
        or "enable_numpy_behavior" in ast.unparse(call.node.func)
        for call in program.all_calls
    ):
        return
    for module, node in program.nodes(ast.BinOp, ast.Call, ast.Compare):
        said = _mistake(program, module, node)
        if said is not None:
            what, fix = said
            yield RULE.finding(
                module.place(node),
                what,
                why="TensorFlow converts Python's numbers to the dtype of the other side, but "
                "never a tensor. This line raises as soon as it is run or traced.",
                fix=fix,
            )


def _mistake(program: Program, module: Module, node: ast.AST) -> tuple[str, str] | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
        return _two(program, module, node.left, node.right)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        if isinstance(node.ops[0], ast.In | ast.NotIn | ast.Is | ast.IsNot):
            return None
        return _two(program, module, node.left, node.comparators[0])
    if not isinstance(node, ast.Call):
        return None
    name = program.name_of(module, node.func)
    if name in _TWO_SIDED and len(node.args) > 1:
        return _two(program, module, node.args[0], node.args[1])
    if name == "tf.where" and len(node.args) > 2:
        return _two(program, module, node.args[1], node.args[2])
    if name in _LISTED and node.args and isinstance(node.args[0], ast.List | ast.Tuple):
        return _several(program, module, node.args[0].elts)
    if name in (*_NO_BOOL, *_ONLY_FLOAT) and node.args:
        return _one(program, module, node, name)
    if isinstance(node.func, ast.Attribute) and node.func.attr in _ASSIGN and node.args:
        owner = node.func.value
        values = program.origins(module, owner)
        plain = [value for value in values if _is_plain_variable(program, value.module, value.node)]
        if plain and len(plain) == len(values):
            return _two(program, module, owner, node.args[0])
    return None


def _is_plain_variable(program: Program, module: Module, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and program.name_of(module, node.func) == "tf.Variable"


def _one(program: Program, module: Module, node: ast.Call, name: str) -> tuple[str, str] | None:
    given = node.args[0]
    dtype = dtypes_of(program).of(module, given)
    bad = dtype == "bool" if name in _NO_BOOL else dtype.startswith(("int", "uint", "bool"))
    if not bad or not _is_tensor(program, module, given):
        return None
    return (
        f"{name} is given {shown(given)}, which is {dtype}, and has no kernel for it.",
        f"{name}(tf.cast({shown(given)}, tf.float32))",
    )


def _several(program: Program, module: Module, elements: list[ast.expr]) -> tuple[str, str] | None:
    first, *rest = elements or [ast.Constant(value=None)]
    for one in rest:
        said = _two(program, module, first, one)
        if said is not None:
            return said
    return None


def _two(
    program: Program, module: Module, left: ast.expr, right: ast.expr
) -> tuple[str, str] | None:
    dtypes = dtypes_of(program)
    one, two = dtypes.of(module, left), dtypes.of(module, right)
    if one and two and one != two:
        # An array of NumPy takes the dtype of the tensor on the other side.
        if not _is_tensor(program, module, left) or not _is_tensor(program, module, right):
            return None
        wider = right if "float" in two and "float" not in one else left
        other = left if wider is right else right
        goal = two if wider is right else one
        if {one, two} == {"float64", "float32"}:
            goal, other = "float32", left if one == "float64" else right
        return (
            f"{shown(left)} is {one} and {shown(right)} is {two}: they do not mix.",
            f"tf.cast({shown(other)}, tf.{goal})",
        )
    for tensor, dtype, number in ((left, one, right), (right, two, left)):
        if not dtype.startswith(("int", "uint")) or not _is_tensor(program, module, tensor):
            continue
        constant = program.constant(module, number)
        if isinstance(constant, float):
            return (
                f"{shown(tensor)} is {dtype} and cannot be joined with {shown(number)}, "
                "which is not whole.",
                f"tf.cast({shown(tensor)}, tf.float32)",
            )
    return None


def _is_tensor(program: Program, module: Module, node: ast.AST) -> bool:
    kinds = program.kinds(module, node)
    if Kind.ARRAY in kinds:
        return False
    return bool(kinds & {Kind.TENSOR, Kind.VARIABLE, Kind.BATCH, Kind.PER_REPLICA}) or isinstance(
        node, ast.Compare
    )


RULE = Rule(
    code="DOC-309",
    family=Family.NUMBERS,
    title="dtypes that do not fit",
    severity=Severity.ERROR,
    look=_look,
)
