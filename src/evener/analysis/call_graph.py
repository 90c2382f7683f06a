"""Call graph of a program: the functions that its calls lead to."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis.call import Call, Site, is_method
from evener.analysis.interface import ProgramQueries
from evener.analysis.kinds import Kind
from evener.analysis.module import FUNCTIONS

_MAPS = ("map", "filter", "flat_map", "interleave")


def sites_of(program: ProgramQueries, call: Call) -> Iterator[Site]:
    """Yield the functions that a call leads to, also by ``strategy.run`` and ``map``."""
    module, node = call.module, call.node
    for where, target in program.targets(module, node):
        if isinstance(target, ast.ClassDef):
            for _, method, _ in program.classes.attributes(where, target, "__init__"):
                if isinstance(method, FUNCTIONS):
                    yield Site(module=module, call=node, function=method, skips_self=True)
        else:
            yield Site(
                module=module, call=node, function=target, skips_self=is_method(where, target)
            )
    way = _way(program, call)
    if way and node.args:
        for where, target in program.functions_of(module, node.args[0]):
            if isinstance(target, FUNCTIONS):
                bound = is_method(where, target)
                yield Site(module=module, call=node, function=target, skips_self=bound, way=way)


def _way(program: ProgramQueries, call: Call) -> str:
    if call.owner is None:
        return ""
    if call.method == "run":
        kinds = program.kinds(call.module, call.owner)
        is_strategy = Kind.STRATEGY in kinds or "strategy" in ast.unparse(call.owner).lower()
        return "run" if is_strategy else ""
    if call.method in _MAPS:
        return "map" if Kind.DATASET in program.kinds(call.module, call.owner) else ""
    return ""
