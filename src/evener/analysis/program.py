"""The semantic model of a program: its names, values, kinds and calls."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from evener.analysis.binding import Binding, Step
from evener.analysis.call import Call, Site
from evener.analysis.call_graph import sites_of
from evener.analysis.classes import Classes
from evener.analysis.context import Context
from evener.analysis.dataflow import Values
from evener.analysis.execution_order import ExecutionOrder
from evener.analysis.files import Files, Unread, read_files
from evener.analysis.interface import Definition
from evener.analysis.kind_inference import Kinds
from evener.analysis.kinds import Kind
from evener.analysis.module import FUNCTIONS, Module, Node
from evener.analysis.qualified_name import canonical
from evener.analysis.scope import Scopes
from evener.analysis.value import Value

# Wrappers after which a function is called as before.
_WRAPPERS = ("tf.function", "functools.partial", "tf.recompute_grad", "tf.custom_gradient")

# Cells of notebooks and parts of scripts leave these imports out.
_USUAL_IMPORTS = {"os": "os", "json": "json", "np": "numpy", "tf": "tensorflow", "keras": "keras"}


class Program:
    """A script and the modules of its project.

    Args:
        script: The absolute path of the script.
        files: Files that were read.
    """

    def __init__(self, script: str, files: Files) -> None:
        self.script = script
        self.modules: tuple[Module, ...] = tuple(files.modules.values())
        self.unread: tuple[Unread, ...] = tuple(files.unread)
        self._by_name = files.modules
        self._scopes = {module: Scopes(module) for module in self.modules}
        self.classes = Classes(self, self._scopes)
        self._values = Values(self)
        self._kinds = Kinds(self)
        self._names: dict[ast.AST, str] = {}
        self._callees: dict[ast.AST, str] = {}
        self._by_patterns: dict[tuple[str, ...], list[Call]] = {}

    @cached_property
    def context(self) -> Context:
        """Return the queries on what surrounds a node when it runs."""
        return Context(self)

    @cached_property
    def order(self) -> ExecutionOrder:
        """Return the order in which lines run."""
        return ExecutionOrder(self)

    # ---- going through it

    def nodes(self, *types: type[Node]) -> Iterator[tuple[Module, Node]]:
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
            for node in sorted(module.every(ast.Call), key=lambda n: (n.lineno, n.col_offset)):
                name = self.name_of(module, node.func)
                found.append(Call(module=module, node=node, name=name))
        return tuple(found)

    def calls(self, *patterns: str) -> Iterator[Call]:
        """Yield the calls of things of the libraries, by names such as ``"tf.data.*"``."""
        if patterns not in self._by_patterns:
            wild = [pattern for pattern in patterns if "*" in pattern]
            names = {
                name
                for name in self._names_called
                if name in patterns or any(fnmatchcase(name, pattern) for pattern in wild)
            }
            self._by_patterns[patterns] = [call for call in self.all_calls if call.name in names]
        yield from self._by_patterns[patterns]

    @cached_property
    def _names_called(self) -> frozenset[str]:
        return frozenset(call.name for call in self.all_calls)

    def method_calls(self, kind: Kind, *methods: str) -> Iterator[Call]:
        """Yield the calls of methods of things of a kind; of all methods if none is named."""
        for call, owner in self.calls_of(*methods):
            if kind in self.kinds(call.module, owner):
                yield call

    def calls_of(self, *methods: str) -> Iterator[tuple[Call, ast.expr]]:
        """Yield the calls of methods of some names, or of all, with whose method it is."""
        for call, owner in self._calls_of_methods:
            if not methods or call.method in methods:
                yield call, owner

    @cached_property
    def _calls_of_methods(self) -> tuple[tuple[Call, ast.expr], ...]:
        return tuple((call, call.owner) for call in self.all_calls if call.owner is not None)

    # ---- what things are

    def name_of(self, module: Module, node: ast.AST) -> str:
        """Return the usual full name of a thing of the libraries or of Python, or ``""``."""
        if node not in self._names:
            self._names[node] = ""  # Ends recursion.
            self._names[node] = canonical(self._dotted(module, node))
        return self._names[node]

    def written_names(self, module: Module, node: ast.AST, deepest: int = 8) -> frozenset[str]:
        """Return the full names that an expression may stand for, as its imports write them.

        ``""`` is among them if it may stand for something else: a value, a module of the project.
        """
        if isinstance(node, ast.Attribute):
            bases = self.written_names(module, node.value, deepest)
            return frozenset(f"{base}.{node.attr}" if base else "" for base in bases)
        if not isinstance(node, ast.Name) or node not in module.parents or not deepest:
            return frozenset({""})
        found = set[str]()
        for where, binding in self.bindings(module, node):
            if binding.imported is not None:
                is_own = binding.imported.partition(".")[0] in self._by_name
                found.add("" if is_own else binding.imported)
            elif isinstance(binding.value, ast.Name | ast.Attribute) and not binding.steps:
                found |= self.written_names(where, binding.value, deepest - 1)
            else:
                found.add("")
        if found or self._scopes[module].stars:
            return frozenset(found or {""})
        return frozenset({"" if hasattr(builtins, node.id) else node.id})

    def callee(self, module: Module, call: ast.Call) -> str:
        """Return the name of the thing of the libraries that a call leads to, or ``""``.

        Also where it is called by another name: out of a registry, a `partial`, an attribute.
        """
        name = self.name_of(module, call.func)
        if name or call in self._callees:
            return name or self._callees[call]
        self._callees[call] = ""  # Ends recursion.
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

    def made_by(self, module: Module, node: ast.AST) -> Iterator[tuple[Module, ast.Call]]:
        """Yield the calls that make what an expression gives, nothing taken out of it."""
        for value in self.origins(module, node):
            if isinstance(value.node, ast.Call) and not value.steps:
                yield value.module, value.node

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
                if not self._has_own_decorator(value.module, value.node):
                    yield value.module, value.node
            elif isinstance(value.node, ast.Call) and not value.steps:
                if self.name_of(value.module, value.node.func) not in _WRAPPERS:
                    yield from self._called_instance(value)
                elif value.node.args:
                    inner = value.node.args[0]
                    yield from self.functions_of(value.module, inner, seen | {value.node})

    def _has_own_decorator(self, module: Module, function: ast.AST) -> bool:
        """Return whether a function of the program decorates it, so that its call is unknown."""
        return any(
            isinstance(origin.node, FUNCTIONS)
            for decorator in getattr(function, "decorator_list", ())
            for origin in self.origins(
                module, decorator.func if isinstance(decorator, ast.Call) else decorator
            )
        )

    def call_sites(self, function: ast.AST) -> list[Site]:
        """Return the calls that lead to a function, also by ``strategy.run`` and ``map``."""
        return self._sites.get(function, [])

    @cached_property
    def _sites(self) -> dict[ast.AST, list[Site]]:
        # While they are collected, parameters are unknown; afterwards the memos are cleared.
        self.__dict__["_sites"] = {}
        sites: dict[ast.AST, list[Site]] = {}
        for call in self._calls_as_written:
            for site in sites_of(self, call):
                sites.setdefault(site.function, []).append(site)
        self.__dict__["_sites"] = sites
        self._values, self._kinds = Values(self), Kinds(self)
        self._callees.clear()
        return sites

    def _called_instance(self, value: Value) -> Iterator[tuple[Module, Definition]]:
        """Yield what runs when an instance of a class of the program is called."""
        if value.steps or not isinstance(value.node, ast.Call):
            return
        for where, target in self._named_targets(value.module, value.node):
            if isinstance(target, ast.ClassDef):
                for name in ("__call__", "call"):
                    for method_module, method, _ in self.classes.attributes(where, target, name):
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
            return f"{stars[-1]}.{node.id}" if stars else _USUAL_IMPORTS.get(node.id, "")
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


def read_program(script: Path, contents: Mapping[str, bytes] | None = None) -> Program:
    """Read a script and what it imports from its own project, without executing it.

    Args:
        script: Path of a Python file. What cannot be read is in ``unread``.
        contents: Contents by absolute path, read instead of those of files.
    """
    return Program(str(script.absolute()), read_files(script, contents))
