"""Which batches and arrays of a program are of another shape in every round."""

from __future__ import annotations

import ast

from evener.doctor.program import Module, Program, argument


def made_as_long_as_needed(
    program: Program, module: Module, node: ast.AST, loop: ast.AST
) -> ast.Call | None:
    """Return the call in a loop that makes an array as long as the longest of a batch."""
    for value in program.origins(module, node):
        made = value.node
        if not isinstance(made, ast.Call) or loop not in value.module.around(made):
            continue
        name = program.name_of(value.module, made.func)
        if name in ("tf.constant", "tf.convert_to_tensor", "np.array", "np.asarray") and made.args:
            found = made_as_long_as_needed(program, value.module, made.args[0], loop)
            if found is not None:
                return found
        if name.endswith("pad_sequences"):
            return made if argument(made, 1, "maxlen") is None else None
        shape = argument(made, 0, "shape")
        if name in ("np.zeros", "np.ones", "np.full", "tf.zeros") and shape is not None:
            for one in shape.elts if isinstance(shape, ast.Tuple | ast.List) else [shape]:
                if _is_longest(program, value.module, one, loop):
                    return made
    return None


def _is_longest(program: Program, module: Module, node: ast.expr, loop: ast.AST) -> bool:
    return any(
        isinstance(value.node, ast.Call)
        and program.name_of(value.module, value.node.func) == "max"
        and loop in value.module.around(value.node)
        for value in program.origins(module, node)
    )


def is_of_many_shapes(program: Program, module: Module, node: ast.expr) -> bool:
    """Return whether the batches of a dataset are as long as the longest element of each."""
    waiting: list[tuple[Module, ast.AST]] = [(module, node)]
    seen: set[ast.AST] = set()
    while waiting and len(seen) < 40:
        where, one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if isinstance(one, ast.Call):
            method = one.func.attr if isinstance(one.func, ast.Attribute) else ""
            if method == "padded_batch":
                shapes = argument(one, 1, "padded_shapes")
                return (
                    shapes is None or "None" in ast.unparse(shapes) or "-1" in ast.unparse(shapes)
                )
            if method in ("bucket_by_sequence_length", "dense_to_ragged_batch", "ragged_batch"):
                return True
            if isinstance(one.func, ast.Attribute):
                waiting += [(v.module, v.node) for v in program.origins(where, one.func.value)]
            waiting += [(v.module, v.node) for a in one.args[:1] for v in program.origins(where, a)]
        elif isinstance(one, ast.Name | ast.Attribute):
            waiting += [(v.module, v.node) for v in program.origins(where, one)]
    return False
