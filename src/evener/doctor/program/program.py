"""A whole program, read and not run: what its names mean, and who calls whom."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from evener.doctor.program.around import Around
from evener.doctor.program.calls import Site, argument
from evener.doctor.program.decorations import Decorations
from evener.doctor.program.kinds import Kind, Kinds
from evener.doctor.program.module import FUNCTIONS, Function, Module
from evener.doctor.program.names import canonical
from evener.doctor.program.order import Order
from evener.doctor.program.place import Place
from evener.doctor.program.reading import Files, Unread, read_files
from evener.doctor.program.scopes import Binding, Scopes, Step
from evener.doctor.program.stored import stored
from evener.doctor.program.values import Value, Values

Definition = Function | ast.ClassDef
_RUN = ("run", "experimental_run_v2")
# Wrappers after which a function is called as before.
_WRAPPERS = ("tf.function", "functools.partial", "tf.recompute_grad", "tf.custom_gradient")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call in the program.

    Args:
        module: Where it stands.
        node: The call itself.
        name: What is called, such as ``"tf.distribute.MirroredStrategy"``; of a method of an
            object of the program ``".run"``.
    """

    module: Module
    node: ast.Call
    name: str

    @property
    def place(self) -> Place:
        """Return its line."""
        return self.module.place(self.node)

    def argument(self, position: int | None, name: str | None = None) -> ast.expr | None:
        """Return what is given at a position, or by a name; None if nothing is."""
        return argument(self.node, position, name)

    @property
    def owner(self) -> ast.expr | None:
        """Return the expression whose method is called; None for a plain function."""
        return self.node.func.value if isinstance(self.node.func, ast.Attribute) else None


class Program:
    """A script and the modules of its project.

    Args:
        script: The absolute path of the script.
        files: What was read.
    """

    def __init__(self, script: str, files: Files) -> None:
        self.script = script
        self.modules: tuple[Module, ...] = tuple(files.modules.values())
        self.unread: tuple[Unread, ...] = tuple(files.unread)
        self._by_name = files.modules
        self._scopes = {module: Scopes(module) for module in self.modules}
        self._values = Values(self)
        self._kinds = Kinds(self)
        self._names: dict[ast.AST, str] = {}
        self._callees: dict[ast.AST, str] = {}
        self._by_patterns: dict[tuple[str, ...], list[Call]] = {}

    @cached_property
    def around(self) -> Around:
        """Return what answers questions on what is around a node when it runs."""
        return Around(self)

    @cached_property
    def order(self) -> Order:
        """Return what tells which line runs first."""
        return Order(self)

    # ---- going through it

    def nodes(self, *types: type[ast.AST]) -> Iterator[tuple[Module, ast.AST]]:
        """Yield all nodes of some types, file by file, in no order within a file."""
        for module in self.modules:
            for node in module.every(*types):
                yield module, node

    @cached_property
    def all_calls(self) -> tuple[Call, ...]:
        """Return all calls of the program, file by file, from top to bottom."""
        assert self._sites is not None  # What parameters are given, names of calls may hang on.
        found: list[Call] = []
        for call in self._calls_as_written:
            name = call.name or self.callee(call.module, call.node)
            if not name and isinstance(call.node.func, ast.Attribute):
                name = "." + call.node.func.attr
            found.append(Call(module=call.module, node=call.node, name=name))
        return tuple(found)

    @cached_property
    def _calls_as_written(self) -> tuple[Call, ...]:
        found: list[Call] = []
        for module in self.modules:
            nodes = [node for node in module.every(ast.Call) if isinstance(node, ast.Call)]
            for node in sorted(nodes, key=lambda one: (one.lineno, one.col_offset)):
                name = self.name_of(module, node.func)
                found.append(Call(module=module, node=node, name=name))
        return tuple(found)

    def calls(self, *patterns: str) -> Iterator[Call]:
        """Yield the calls of things of the libraries, by names such as ``"tf.data.*"``."""
        if patterns not in self._by_patterns:
            names = {
                name
                for name in {call.name for call in self.all_calls}
                if any(fnmatchcase(name, pattern) for pattern in patterns)
            }
            self._by_patterns[patterns] = [call for call in self.all_calls if call.name in names]
        yield from self._by_patterns[patterns]

    def method_calls(self, kind: Kind, *methods: str) -> Iterator[Call]:
        """Yield the calls of methods of things of a kind; of all methods if none is named."""
        for call in self._calls_of_methods:
            function = call.node.func
            if not isinstance(function, ast.Attribute):
                continue
            if methods and function.attr not in methods:
                continue
            if kind in self.kinds(call.module, function.value):
                yield call

    @cached_property
    def _calls_of_methods(self) -> tuple[Call, ...]:
        return tuple(call for call in self.all_calls if isinstance(call.node.func, ast.Attribute))

    # ---- what things are

    def name_of(self, module: Module, node: ast.AST) -> str:
        """Return the usual full name of a thing of the libraries or of Python, or ``""``."""
        if node not in self._names:
            self._names[node] = ""  # For circles.
            self._names[node] = canonical(self._dotted(module, node))
        return self._names[node]

    def callee(self, module: Module, call: ast.Call) -> str:
        """Return the name of the thing of the libraries that a call leads to, or ``""``.

        Also where it is called by another name: out of a registry, a `partial`, an attribute.
        """
        name = self.name_of(module, call.func)
        if name or call in self._callees:
            return name or self._callees[call]
        self._callees[call] = ""  # For circles.
        names = set[str]()
        for value in self.origins(module, call.func):
            if value.node is call.func or value.steps:
                continue
            if isinstance(value.node, (*FUNCTIONS, ast.ClassDef)):
                return ""
            if isinstance(value.node, ast.Name | ast.Attribute):
                names.add(self.name_of(value.module, value.node))
        # Of several the first stands for all: a registry holds things of a kind.
        self._callees[call] = min(names - {""}, default="")
        return self._callees[call]

    def kinds(self, module: Module, node: ast.AST, steps: tuple[Step, ...] = ()) -> frozenset[Kind]:
        """Return what kinds of thing an expression may give; empty if that is not known."""
        return self._kinds.of(module, node, steps)

    def kind_of_class(self, module: Module, definition: ast.ClassDef) -> Kind | None:
        """Return what instances of a class of the program are, by its bases."""
        return self._kinds.of_class(module, definition)

    def origins(
        self, module: Module, node: ast.AST, steps: tuple[Step, ...] = ()
    ) -> tuple[Value, ...]:
        """Return where a value may come from: calls, constants, definitions."""
        return self._values.origins(module, node, steps)

    def constant(self, module: Module, node: ast.AST | None) -> object:
        """Return the one constant that an expression can only be, or None."""
        if node is None:
            return None
        values = self.origins(module, node)
        found = {
            repr(value.node.value): value.node.value
            for value in values
            if isinstance(value.node, ast.Constant) and not value.steps
        }
        if len(found) != 1 or not all(isinstance(v.node, ast.Constant) for v in values):
            return None
        return next(iter(found.values()))

    # ---- names

    def bindings(self, module: Module, node: ast.Name) -> Iterator[tuple[Module, Binding]]:
        """Yield what a name may be bound to where it stands, through imports of the project."""
        if node not in module.parents:
            return
        for binding in self._scopes[module].seen_from(node, node.id):
            yield self._through_imports(module, binding)

    def symbol(self, module: Module, node: ast.Attribute) -> tuple[Module, Binding] | None:
        """Return what ``module.name`` is, if the module is one of the project."""
        dotted = self._dotted(module, node.value)
        other = self._by_name.get(dotted)
        return None if other is None else self._symbol_in(other, node.attr)

    def classes_of(self, module: Module, node: ast.AST) -> Iterator[tuple[Module, ast.ClassDef]]:
        """Yield the classes of the program that an expression may be an instance of."""
        if isinstance(node, ast.Name) and node.id in ("self", "cls"):
            for outer in module.around(node):
                if isinstance(outer, ast.ClassDef):
                    yield module, outer
                    # What a class says of itself holds for those made of it.
                    yield from self._derived.get(outer, ())
                    return
        if isinstance(node, ast.Call) and self.name_of(module, node.func) == "super":
            for outer in module.around(node):
                if isinstance(outer, ast.ClassDef):
                    for where, base in self.bases(module, outer):
                        if isinstance(base, ast.ClassDef):
                            yield where, base
                    return
        for value in self.origins(module, node):
            if isinstance(value.node, ast.Call) and not value.steps:
                for where, target in self.targets(value.module, value.node):
                    if isinstance(target, ast.ClassDef):
                        yield where, target
            elif isinstance(value.node, ast.ClassDef) and not value.steps:
                # Config.batch_size, without an instance.
                yield value.module, value.node
            elif isinstance(value.node, ast.arg) and value.node.annotation is not None:
                for one in self.origins(value.module, value.node.annotation):
                    if isinstance(one.node, ast.ClassDef):
                        yield one.module, one.node

    def bases(
        self, module: Module, definition: ast.ClassDef
    ) -> Iterator[tuple[Module, ast.ClassDef | str]]:
        """Yield the bases of a class: classes of the program, or names of the libraries."""
        for base in definition.bases:
            name = self.name_of(module, base)
            if name:
                yield module, name
                continue
            for value in self.origins(module, base):
                if isinstance(value.node, ast.ClassDef):
                    yield value.module, value.node

    @cached_property
    def _derived(self) -> dict[ast.ClassDef, list[tuple[Module, ast.ClassDef]]]:
        found: dict[ast.ClassDef, list[tuple[Module, ast.ClassDef]]] = {}
        for module, node in self.nodes(ast.ClassDef):
            assert isinstance(node, ast.ClassDef)
            for _, base in self.with_bases(module, node):
                if base is not node:
                    found.setdefault(base, []).append((module, node))
        return found

    def attributes(
        self, module: Module, definition: ast.ClassDef, name: str
    ) -> Iterator[tuple[Module, ast.AST, tuple[Step, ...]]]:
        """Yield what an attribute of a class's instances may be, its bases' included."""
        for where, one in self.with_bases(module, definition):
            found = False
            for binding in self._scopes[where].bindings_in(one, name):
                found = True
                if binding.definition is not None:
                    yield where, binding.definition, ()
                elif binding.value is not None:
                    yield where, binding.value, binding.steps
            for value, steps in self._assigned_to_self.get((one, name), []):
                found = True
                yield where, value, steps
            if found:
                return

    # ---- calls

    def targets(self, module: Module, call: ast.Call) -> Iterator[tuple[Module, Definition]]:
        """Yield the functions and classes of the program that a call may lead to."""
        yield from self.functions_of(module, call.func)

    def functions_of(
        self, module: Module, node: ast.AST, seen: frozenset[ast.AST] = frozenset()
    ) -> Iterator[tuple[Module, Definition]]:
        """Yield the functions and classes that an expression may be, wrappers taken off."""
        for value in self.origins(module, node):
            if value.node in seen:
                continue  # step = tf.function(step)
            if isinstance(value.node, (*FUNCTIONS, ast.ClassDef)) and not value.steps:
                inside = set(module.around(node))
                wrappers = self._decorations.wrappers_of.get(value.node, [])
                # In the wrapper itself the name is the function as it was.
                if not wrappers or any(one in inside for _, one in wrappers):
                    yield value.module, value.node
                else:
                    yield from wrappers
            elif isinstance(value.node, ast.Call) and not value.steps:
                if self.name_of(value.module, value.node.func) not in _WRAPPERS:
                    yield from self._called_instance(value)
                elif value.node.args:
                    inner = value.node.args[0]
                    yield from self.functions_of(value.module, inner, seen | {value.node})

    def decorated_by(self, function: ast.AST) -> list[tuple[Module, ast.AST]]:
        """Return the functions that are given to a decorator of the program."""
        return self._decorations.given_to.get(function, [])

    @cached_property
    def _decorations(self) -> Decorations:
        return Decorations(self)

    def call_sites(self, function: ast.AST) -> list[Site]:
        """Return the calls that lead to a function, also by ``strategy.run`` and ``map``."""
        return self._sites.get(function, [])

    @cached_property
    def _sites(self) -> dict[ast.AST, list[Site]]:
        # While they are gathered nothing is known of parameters; then all is followed anew.
        self.__dict__["_sites"] = {}
        sites: dict[ast.AST, list[Site]] = {}
        for call in self._calls_as_written:
            for site in self._sites_of(call):
                sites.setdefault(site.function, []).append(site)
        self.__dict__["_sites"] = sites
        self._values, self._kinds = Values(self), Kinds(self)
        self._callees.clear()
        return sites

    def _sites_of(self, call: Call) -> Iterator[Site]:
        module, node = call.module, call.node
        for where, target in self.targets(module, node):
            if isinstance(target, ast.ClassDef):
                for _, method, _ in self.attributes(where, target, "__init__"):
                    if isinstance(method, FUNCTIONS):
                        yield Site(module=module, call=node, function=method, skips_self=True)
            else:
                yield Site(
                    module=module, call=node, function=target, skips_self=is_method(where, target)
                )
        way = self._way(call)
        if way and node.args:
            for where, target in self.functions_of(module, node.args[0]):
                if isinstance(target, FUNCTIONS):
                    bound = is_method(where, target)
                    yield Site(module=module, call=node, function=target, skips_self=bound, way=way)

    def _way(self, call: Call) -> str:
        if not isinstance(call.node.func, ast.Attribute):
            return ""
        method = call.node.func.attr
        if method in _RUN:
            named = ast.unparse(call.node.func.value).lower()
            kinds = self.kinds(call.module, call.node.func.value)
            return "run" if Kind.STRATEGY in kinds or "strategy" in named else ""
        if method in ("map", "filter", "flat_map", "interleave"):
            return "map" if Kind.DATASET in self.kinds(call.module, call.node.func.value) else ""
        return ""

    def _called_instance(self, value: Value) -> Iterator[tuple[Module, Definition]]:
        """Yield what runs when an instance of a class of the program is called."""
        if value.steps or not isinstance(value.node, ast.Call):
            return
        for where, target in self._named_targets(value.module, value.node):
            if isinstance(target, ast.ClassDef):
                for name in ("__call__", "call"):
                    for method_module, method, _ in self.attributes(where, target, name):
                        if isinstance(method, FUNCTIONS):
                            yield method_module, method

    def _named_targets(self, module: Module, call: ast.Call) -> Iterator[tuple[Module, Definition]]:
        for value in self.origins(module, call.func):
            if isinstance(value.node, (*FUNCTIONS, ast.ClassDef)) and not value.steps:
                yield value.module, value.node

    # ---- inside

    def _dotted(self, module: Module, node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            base = self._dotted(module, node.value)
            if base in self._by_name:
                found = self._symbol_in(self._by_name[base], node.attr)
                if found is not None:
                    return self._name_of_binding(*found)
            return f"{base}.{node.attr}" if base else ""
        if not isinstance(node, ast.Name) or node not in module.parents:
            return ""
        names = {self._name_of_binding(*found) for found in self.bindings(module, node)}
        named = names - {""}
        if named:
            return min(named)
        if not names and not hasattr(builtins, node.id):
            stars = [star for star in self._scopes[module].stars if star not in self._by_name]
            return f"{stars[-1]}.{node.id}" if stars else ""
        return "" if names else node.id

    def _name_of_binding(self, module: Module, binding: Binding) -> str:
        if binding.imported is not None:
            return binding.imported
        if isinstance(binding.value, ast.Name | ast.Attribute) and not binding.steps:
            return self.name_of(module, binding.value)
        return ""

    def _through_imports(self, module: Module, binding: Binding) -> tuple[Module, Binding]:
        seen = set[int]()
        while binding.imported is not None and id(binding) not in seen:
            seen.add(id(binding))
            base, _, name = binding.imported.rpartition(".")
            if binding.imported in self._by_name or base not in self._by_name:
                break
            found = self._symbol_in(self._by_name[base], name)
            if found is None:
                break
            module, binding = found
        return module, binding

    def _symbol_in(self, module: Module, name: str) -> tuple[Module, Binding] | None:
        found = self._scopes[module].bindings_in(module.tree, name)
        if found:
            return self._through_imports(module, found[-1])
        for star in self._scopes[module].stars:
            if star in self._by_name and self._by_name[star] is not module:
                return self._symbol_in(self._by_name[star], name)
        return None

    def with_bases(
        self, module: Module, definition: ast.ClassDef
    ) -> Iterator[tuple[Module, ast.ClassDef]]:
        """Yield a class and the classes of the program that it is made of, once each."""
        waiting: list[tuple[Module, ast.ClassDef]] = [(module, definition)]
        seen = set[ast.AST]()
        while waiting:
            where, one = waiting.pop(0)
            if one in seen:
                continue
            seen.add(one)
            yield where, one
            for base_module, base in self.bases(where, one):
                if isinstance(base, ast.ClassDef):
                    waiting.append((base_module, base))

    def stored_in(self, container: ast.AST) -> list[tuple[Module, ast.expr, Step]]:
        """Return what is put into a list or dict after it was made, and under which key."""
        return self._stored.get(container, [])

    @cached_property
    def _stored(self) -> dict[ast.AST, list[tuple[Module, ast.expr, Step]]]:
        return stored(self)

    @cached_property
    def _assigned_to_self(
        self,
    ) -> dict[tuple[ast.ClassDef, str], list[tuple[ast.expr, tuple[Step, ...]]]]:
        found: dict[tuple[ast.ClassDef, str], list[tuple[ast.expr, tuple[Step, ...]]]] = {}
        for module, node in self.nodes(ast.Assign, ast.AnnAssign):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                for index, part in enumerate(parts):
                    definition = _class_of_self(module, part)
                    if definition is None or not isinstance(part, ast.Attribute):
                        continue
                    steps: tuple[Step, ...] = (index,) if part is not target else ()
                    found.setdefault((definition, part.attr), []).append((node.value, steps))
        return found


def is_method(module: Module, function: Definition) -> bool:
    """Return whether a function is called on an object."""
    if not isinstance(module.parents.get(function), ast.ClassDef):
        return False
    decorators = getattr(function, "decorator_list", [])
    return not any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in decorators)


def read_program(script: Path) -> Program:
    """Read a script and what it imports from its own project. Nothing is executed.

    Args:
        script: The path of a Python file. What cannot be read is in ``unread``.
    """
    return Program(str(script.absolute()), read_files(script))


def _class_of_self(module: Module, node: ast.AST) -> ast.ClassDef | None:
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return None
    if node.value.id not in ("self", "cls"):
        return None
    return next((one for one in module.around(node) if isinstance(one, ast.ClassDef)), None)
