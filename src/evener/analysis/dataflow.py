"""Following a value through names, attributes, calls and modules to where it was made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from evener.analysis.binding import Binding, Step
from evener.analysis.interface import ProgramQueries
from evener.analysis.memo import RecursionSafeMemo
from evener.analysis.module import FUNCTIONS, Function, Module, own_nodes
from evener.analysis.value import Value

# The depth of recursive queries, the links from a value to its origins, and the steps that take
# a value out of another.
_DEEPEST = 24
_MOST_LINKS = 400
_MOST_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """An expression on the way to an origin, which leads on to others."""

    module: Module
    node: ast.AST
    steps: tuple[Step, ...]


# Methods that only a strategy has.
DISTRIBUTING = ("experimental_distribute_dataset", "distribute_datasets_from_function")
# Functions whose result has the same elements, or is called in the same way, as the argument.
_TRANSPARENT = ("iter", "list", "tuple", "sorted", "tqdm", "tf.function", "functools.partial")
_Key = tuple[ast.AST, tuple[Step, ...]]


class Values:
    """Follows values in a program.

    Args:
        program: The program.
    """

    def __init__(self, program: ProgramQueries) -> None:
        self._program = program
        self._memo: RecursionSafeMemo[_Key, tuple[Value, ...]] = RecursionSafeMemo(
            (), deepest=_DEEPEST
        )
        # A function is searched once, and not for each of its calls.
        self._returned: dict[Function, tuple[ast.expr, ...]] = {}
        # Lists, and what is appended to them.
        self._appends: dict[Module, list[tuple[ast.Name, ast.expr]]] = {}

    def origins(
        self, module: Module, node: ast.AST, steps: tuple[Step, ...] = ()
    ) -> tuple[Value, ...]:
        """Return where the value of an expression may come from; empty only in a circle."""
        start = _Link(module=module, node=node, steps=steps)
        return self._memo.get((node, steps), lambda: self._ends_of(start))

    def _ends_of(self, start: _Link) -> tuple[Value, ...]:
        """Follow all links from a start, each once, and return the ends."""
        found: dict[_Key, Value] = {}
        seen: set[_Key] = set()
        waiting = [start]
        while waiting and len(seen) < _MOST_LINKS:
            link = waiting.pop()
            key = (link.node, link.steps)
            if key in seen or len(link.steps) > _MOST_STEPS:
                continue
            seen.add(key)
            for end_or_link in self._follow(link.module, link.node, link.steps):
                if isinstance(end_or_link, Value):
                    found.setdefault((end_or_link.node, end_or_link.steps), end_or_link)
                else:
                    waiting.append(end_or_link)
        end = Value(module=start.module, node=start.node, steps=start.steps)
        # In the order in which they stand in the program, as far as they do.
        return tuple(found.values()) or (end,)

    def _follow(
        self, module: Module, node: ast.AST, steps: tuple[Step, ...]
    ) -> Iterator[Value | _Link]:
        """Go one step towards the origin of a value."""

        def link(to: ast.AST, further: tuple[Step, ...] = steps) -> _Link:
            return _Link(module=module, node=to, steps=further)

        if isinstance(node, ast.Name):
            for binding in self._program.bindings(module, node):
                yield from self._of_binding(*binding, node, steps)
        elif isinstance(node, ast.Attribute):
            yield from self._of_attribute(module, node, steps)
        elif isinstance(node, ast.IfExp):
            yield from (link(node.body), link(node.orelse))
        elif isinstance(node, ast.BoolOp):
            yield from (link(value) for value in node.values)
        elif isinstance(node, ast.NamedExpr | ast.Starred | ast.Await):
            yield link(node.value)
        elif isinstance(node, ast.Subscript):
            step = _index(node.slice)
            if step == "each":
                key = self._program.constant(module, node.slice)
                step = f"key:{key}" if isinstance(key, str) else step
            # A part of a list is a list of the same things.
            yield link(node.value, steps if step == "slice" else (step, *steps))
        elif isinstance(node, ast.Call):
            yield from self._of_call(module, node, steps)
        elif steps and isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
            yield from self._of_elements(module, node, steps)
        elif steps and isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
            yield link(node.elt, steps[1:])
        else:
            yield Value(module=module, node=node, steps=steps)

    def _of_binding(
        self, module: Module, binding: Binding, use: ast.expr, steps: tuple[Step, ...]
    ) -> Iterator[Value | _Link]:
        if binding.definition is not None:
            yield Value(module=module, node=binding.definition, steps=steps)
        elif binding.value is not None:
            appended = self._appended(module, binding) if steps and not binding.steps else []
            if not appended or getattr(binding.value, "elts", ()):
                yield _link(module, binding.value, (*binding.steps, *steps))
            yield from (_link(module, element, steps[1:]) for element in appended)
        elif binding.parameter_of is not None:
            yield from self._of_parameter(module, binding, steps)
        else:
            yield Value(module=module, node=use, steps=steps)

    def _appended(self, module: Module, binding: Binding) -> list[ast.expr]:
        """Return what the module appends to a list that a name is bound to."""
        if not isinstance(binding.value, ast.List):
            return []
        if module not in self._appends:
            self._appends[module] = [
                (node.func.value, node.args[0])
                for node in module.every(ast.Call)
                if isinstance(node.func, ast.Attribute)
                and node.func.attr == "append"
                and isinstance(node.func.value, ast.Name)
                and len(node.args) == 1
            ]
        return [
            element
            for name, element in self._appends[module]
            if name.id == binding.name
            and any(found is binding for _, found in self._program.bindings(module, name))
        ]

    def _of_parameter(
        self, module: Module, binding: Binding, steps: tuple[Step, ...]
    ) -> Iterator[Value | _Link]:
        function = binding.parameter_of
        assert function is not None
        known = False
        for site in self._program.call_sites(function):
            for given, path in site.given_to(binding.name):
                known = True
                yield _link(site.module, given, (*path, *steps))
        default = _default_of(function, binding.name)
        if default is not None and not known:
            yield _link(module, default, steps)
        if not known and default is None:
            yield Value(module=module, node=binding.statement, steps=steps)

    def _of_attribute(
        self, module: Module, node: ast.Attribute, steps: tuple[Step, ...]
    ) -> Iterator[Value | _Link]:
        imported = self._program.symbol(module, node)
        if imported is not None:
            yield from self._of_binding(*imported, node, steps)
            return
        found, classes = False, self._program.classes
        for class_module, definition in classes.of(module, node.value):
            for where, value, path in classes.attributes(class_module, definition, node.attr):
                found = True
                if isinstance(value, ast.expr):
                    yield _link(where, value, (*path, *steps))
                else:
                    yield Value(module=where, node=value, steps=steps)
        if not found:
            yield Value(module=module, node=node, steps=steps)

    def _of_call(
        self, module: Module, node: ast.Call, steps: tuple[Step, ...]
    ) -> Iterator[Value | _Link]:
        through = self._passed_through(module, node, steps)
        if through is not None:
            yield _link(module, *through)
            return
        known = False
        for where, target in self._program.targets(module, node):
            if isinstance(target, FUNCTIONS):
                if target not in self._returned:
                    self._returned[target] = tuple(returns_of(target))
                for returned in self._returned[target]:
                    known = True
                    yield _link(where, returned, steps)
        if not known:
            yield Value(module=module, node=node, steps=steps)

    def _passed_through(
        self, module: Module, node: ast.Call, steps: tuple[Step, ...]
    ) -> tuple[ast.expr, tuple[Step, ...]] | None:
        """Return the argument that a call of one of Python's wrappers gives on, with steps."""
        name = self._program.name_of(module, node.func)
        first = node.args[0] if node.args else None
        if first is None:
            return None
        if name in _TRANSPARENT or name.startswith("tqdm."):
            return first, steps
        if name == "next":
            return first, ("each", *steps)
        if name == "enumerate" and steps[:2] == ("each", 1):
            return first, ("each", *steps[2:])
        if name == "zip" and steps[:1] == ("each",) and len(steps) > 1:
            index = steps[1]
            if isinstance(index, int) and index < len(node.args):
                return node.args[index], ("each", *steps[2:])
        return None

    def _of_elements(
        self,
        module: Module,
        node: ast.Tuple | ast.List | ast.Set | ast.Dict,
        steps: tuple[Step, ...],
    ) -> Iterator[Value | _Link]:
        elements = _elements(node)
        step = steps[0]
        if isinstance(step, int) and not isinstance(node, ast.Dict):
            if -len(elements) <= step < len(elements):
                elements = [elements[step]]
        elif isinstance(step, str) and step.startswith("key:") and isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            elements = [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == step[4:]]
        if not elements:
            yield Value(module=module, node=node, steps=steps)
        for element in elements:
            yield _link(module, element, steps[1:])


def _link(module: Module, node: ast.AST, steps: tuple[Step, ...]) -> _Link:
    return _Link(module=module, node=node, steps=steps)


def returns_of(function: Function) -> Iterator[ast.expr]:
    """Yield what a function returns itself, not the functions in it."""
    if isinstance(function, ast.Lambda):
        yield function.body
        return
    for node in own_nodes(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value


def _elements(node: ast.Tuple | ast.List | ast.Set | ast.Dict) -> list[ast.expr]:
    return list(node.values) if isinstance(node, ast.Dict) else list(node.elts)


def _index(node: ast.expr) -> Step:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else f"key:{node.value}"
    return "slice" if isinstance(node, ast.Slice) else "each"


def _default_of(function: Function, name: str) -> ast.expr | None:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    pairs = list(zip(reversed(positional), reversed(given.defaults), strict=False))
    pairs += [
        (parameter, default)
        for parameter, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        if default is not None
    ]
    return next((default for parameter, default in pairs if parameter.arg == name), None)
