"""A symbolic walk of a program: its calls in the order in which they run, and what is around each.

The walk goes through the script from its first line as Python would, with values that are known
only as far as the text says: constants, things of the libraries, what their calls made, functions
and objects of the program. It enters imports, functions and methods where they are called, with
what they are given. Both branches of a condition are walked unless the condition is a constant;
a loop is walked once. What no line calls is walked at the end, with nothing known.
"""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from evener.doctor.names import ELEMENTS, canonical, kind_made_by
from evener.doctor.sources import Source, from_module
from evener.doctor.values import (
    UNKNOWN,
    Call,
    Class,
    Constant,
    Context,
    Instance,
    Items,
    Library,
    Loop,
    Made,
    OwnFunction,
    Scope,
    Value,
    constant,
    joined,
    made_by,
)

_MOST_CALLS = 20_000
_MOST_WALKS = 6  # of one function: its callers differ in what they give
_DEEPEST = 40
_USUAL_KINDS = ("strategy", "optimizer", "model", "dataset")
# Calls whose elements are those of what they are given.
_PASSING = ("tqdm.", "iter", "reversed", "list", "sorted")
_CALLED_BY_KERAS = ("call", "train_step", "update_state", "on_train_batch_end", "__call__")
_LEAVING = ("sys.exit", "exit", "quit", "os._exit")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_LARGEST = {ast.Pow: 64, ast.LShift: 64}  # A larger number may be as long as memory.


class _Full(Exception):
    """The program has more calls than are looked at."""


class _Left(Exception):
    """The rest of a block is not reached."""


class Walk:
    """The walk of one program."""

    def __init__(self, sources: dict[str, Source]) -> None:
        self.calls: list[Call] = []
        self._sources = sources
        self._modules: dict[str, Scope] = {}
        self._context = Context()
        self._num_walks: dict[ast.AST, int] = {}
        self._returned: dict[ast.AST, Value] = {}
        self._returns: list[Value] | None = None  # of the function that is walked
        self._defined: list[OwnFunction] = []
        self._objects: list[Instance] = []
        # Rules hold for what was walked: they need no complete list.
        with contextlib.suppress(_Full):
            for name in list(sources)[:1]:
                self._module(name)
            # The methods that Keras calls, then what nothing calls.
            for instance in list(self._objects):
                for name in _CALLED_BY_KERAS:
                    method = instance.made.find(name)
                    if isinstance(method, OwnFunction) and method.node not in self._num_walks:
                        self._method(instance, name, roles={"keras"})
            for function in self._defined:
                if function.node not in self._num_walks:
                    self._enter(function, roles={"unreached"})

    # ---- modules and blocks

    def _module(self, name: str) -> Scope:
        if name not in self._modules:
            source = self._sources[name]
            scope = self._modules[name] = Scope(source)
            scope.names["__name__"] = Constant("", name)
            # A module that a branch or function imports first runs with that around it.
            self._block(source.tree.body, scope)
        return self._modules[name]

    def _block(self, statements: Iterable[ast.stmt], scope: Scope) -> bool:
        """Walk statements; return whether their end is not reached."""
        try:
            for statement in statements:
                self._statement(statement, scope)
        except _Left:
            return True
        return False

    @contextlib.contextmanager
    def _inside(self, **changes: Any) -> Iterator[None]:
        """Set what is around the lines of a ``with`` block, and set it back."""
        before = self._context
        self._context = replace(before, **changes)
        try:
            yield
        finally:
            self._context = before

    def _guarded(self, node: ast.AST, branch: int) -> contextlib.AbstractContextManager[None]:
        return self._inside(guards=(*self._context.guards, (node, branch)))

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.bind(node.name, self._function(node, scope))
            case ast.ClassDef():
                scope.bind(node.name, self._class(node, scope))
            case ast.Assign(targets=targets):
                value = self._value(node.value, scope)
                for target in targets:
                    self._bind(target, value, scope)
            case ast.AnnAssign(value=ast.expr() as given):
                self._bind(node.target, self._value(given, scope), scope)
            case ast.AugAssign():
                before, value = self._value(node.target, scope), self._value(node.value, scope)
                self._bind(node.target, _computed(node.op, before, value), scope)
            case ast.If():
                self._if(node, scope)
            case ast.For() | ast.AsyncFor():
                over = self._value(node.iter, scope)
                with self._inside(loops=(*self._context.loops, Loop(node, over))):
                    self._bind(node.target, self._element(over), scope)
                    self._block(node.body, scope)
                self._block(node.orelse, scope)
            case ast.While():
                with self._inside(loops=(*self._context.loops, Loop(node, UNKNOWN))):
                    test = self._value(node.test, scope)
                    self._block(node.body, scope)
                breaks = any(isinstance(each, ast.Break) for each in ast.walk(node))
                if constant(test) is True and not breaks:
                    raise _Left
            case ast.With() | ast.AsyncWith():
                with contextlib.ExitStack() as around:
                    for item in node.items:
                        value = self._value(item.context_expr, scope)
                        around.enter_context(self._inside(blocks=(*self._context.blocks, value)))
                        if item.optional_vars is not None:
                            self._bind(item.optional_vars, value, scope)
                    if self._block(node.body, scope):
                        raise _Left
            case ast.Try():
                self._try(node, scope)
            case ast.Return():
                value = UNKNOWN if node.value is None else self._value(node.value, scope)
                if self._returns is not None:
                    self._returns.append(value)
                raise _Left
            case ast.Global() | ast.Nonlocal():
                scope.shared.update(node.names)
            case _:
                self._children(node, scope)
                if isinstance(node, ast.Raise | ast.Break | ast.Continue):
                    raise _Left

    def _children(self, node: ast.AST, scope: Scope) -> list[Value]:
        return [self._value(each, scope) for each in ast.iter_child_nodes(node)]

    def _if(self, node: ast.If, scope: Scope) -> None:
        test = self._value(node.test, scope)
        if isinstance(test, Constant):
            if self._block(node.body if test.value else node.orelse, scope):
                raise _Left
            return
        ends: list[dict[str, Value] | None] = []
        for number, body in enumerate((node.body, node.orelse)):
            before = dict(scope.names)
            with self._guarded(node, number):
                is_left = self._block(body, scope)
            ends.append(None if is_left else scope.names)
            scope.names = before
        self._join(scope, ends)
        for number, end in enumerate(ends):
            # `if not gpus: return` guards everything behind it, as an else branch would.
            if end is None:
                guards = (*self._context.guards, (node, 1 - number))
                self._context = replace(self._context, guards=guards)

    def _join(self, scope: Scope, ends: list[dict[str, Value] | None]) -> None:
        """Bind the names of branches; if all of them leave, what follows is not reached."""
        reached = [end for end in ends if end is not None]
        if not reached:
            raise _Left
        for name in {name for end in reached for name in end}:
            scope.names[name] = joined(end[name] for end in reached if name in end)

    def _try(self, node: ast.Try, scope: Scope) -> None:
        # An exception may come from any line of the body, so that its names may be bound or not.
        before = dict(scope.names)
        with self._inside(catches=self._context.catches or bool(node.handlers)):
            is_left = self._block([*node.body, *node.orelse], scope)
        ends: list[dict[str, Value] | None] = [None if is_left else dict(scope.names)]
        for number, handler in enumerate(node.handlers, start=1):
            scope.names = {**before, **scope.names}
            with self._guarded(handler, number):
                left = self._block(handler.body, scope)
            ends.append(None if left else dict(scope.names))
        is_left = self._block(node.finalbody, scope)
        self._join(scope, ends)
        if is_left:
            raise _Left

    # ---- definitions and bindings

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name if alias.asname else alias.name.partition(".")[0]
                self._record("import", node, scope, args=(Constant("", canonical(alias.name)),))
                if alias.name in self._sources:
                    self._module(alias.name)
                name = root if root in self._sources else canonical(root)
                scope.bind(alias.asname or root, Library("", name))
            return
        base = from_module(scope.source, node)
        self._record("import", node, scope, args=(Constant("", canonical(base)),))
        own = self._module(base) if base in self._sources else None
        for alias in node.names:
            dotted = f"{base}.{alias.name}" if base else alias.name
            if own is not None and alias.name == "*":
                scope.names.update(own.names)
                continue
            if own is not None and alias.name in own.names:
                scope.names[alias.asname or alias.name] = own.names[alias.name]
                continue
            if dotted in self._sources:
                self._module(dotted)
                own = None
            value = Library("", canonical(dotted)) if own is None else UNKNOWN
            scope.bind(alias.asname or alias.name, value)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> OwnFunction:
        function = OwnFunction(node=node, scope=scope)
        self._defined.append(function)
        for decorator in reversed(node.decorator_list):
            wrapper = self._value(decorator, scope)
            made = made_by(wrapper)
            if "tf.function" in (getattr(wrapper, "name", ""), "" if made is None else made.name):
                function = replace(function, traced=True)
            elif isinstance(wrapper, OwnFunction):
                given = self._enter(wrapper, (function,))
                function = given if isinstance(given, OwnFunction) else function
        return function

    def _class(self, node: ast.ClassDef, scope: Scope) -> Class:
        bases = tuple(self._value(base, scope) for base in node.bases)
        kinds = [kind_made_by(b.name) if isinstance(b, Library) else b.kind for b in bases]
        inner = Scope(scope.source, outer=scope, is_class=True)
        self._block(node.body, inner)
        return Class(next(filter(None, kinds), ""), bases, inner.names)

    def _bind(self, target: ast.expr, value: Value, scope: Scope) -> None:
        match target:
            case ast.Name():
                scope.bind(target.id, value)
            case ast.Starred():
                self._bind(target.value, Value(value.kind), scope)
            case ast.Tuple() | ast.List():
                for number, part in enumerate(target.elts):
                    self._bind(part, _item(value, number), scope)
            case ast.Attribute():
                owner = self._value(target.value, scope)
                if isinstance(owner, Instance):
                    owner.attributes[target.attr] = value
            case ast.Subscript():
                owner = self._value(target.value, scope)
                if isinstance(owner, Library) and owner.name == "os.environ":
                    key = self._value(target.slice, scope)
                    self._record("environ", target, scope, args=(key, value))
            case _:
                pass

    # ---- expressions

    def _value(self, node: ast.AST, scope: Scope) -> Value:
        match node:
            case ast.Constant():
                return Constant("", node.value)
            case ast.Name():
                return scope.find(node.id) or Library("", node.id)
            case ast.Attribute():
                return self._attribute(self._value(node.value, scope), node.attr)
            case ast.Call():
                return self._call(node, scope)
            case ast.BinOp():
                left, right = self._value(node.left, scope), self._value(node.right, scope)
                return _computed(node.op, left, right)
            case ast.Compare():
                first, *others = (self._value(e, scope) for e in (node.left, *node.comparators))
                return _computed(node.ops[0], first, others[0]) if len(others) == 1 else UNKNOWN
            case ast.UnaryOp():
                value = self._value(node.operand, scope)
                is_known = isinstance(node.op, ast.Not) and isinstance(value, Constant)
                return Constant("", not constant(value)) if is_known else UNKNOWN
            case ast.BoolOp():
                values = [self._value(each, scope) for each in node.values]
                ending = isinstance(node.op, ast.Or)
                ends = (e for e in values if isinstance(e, Constant) and bool(e.value) is ending)
                known = values[-1] if all(isinstance(e, Constant) for e in values) else UNKNOWN
                return next(ends, known)
            case ast.IfExp():
                test, parts = self._value(node.test, scope), list[Value]()
                for number, part in enumerate((node.body, node.orelse)):
                    if not isinstance(test, Constant) or bool(test.value) is not bool(number):
                        with self._guarded(node, number):
                            parts.append(self._value(part, scope))
                return joined(parts)
            case ast.List() | ast.Tuple() | ast.Set():
                return Items("", tuple(self._value(each, scope) for each in node.elts))
            case ast.Dict():
                keys = tuple(constant(self._value(k, scope)) if k else None for k in node.keys)
                return Items("", tuple(self._value(each, scope) for each in node.values), keys)
            case ast.Subscript():
                owner = self._value(node.value, scope)
                return _item(owner, constant(self._value(node.slice, scope)))
            case ast.Lambda():
                function = OwnFunction(node=node, scope=scope)
                self._defined.append(function)
                return function
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                inner, loops = Scope(scope.source, outer=scope), self._context.loops
                for part in node.generators:
                    with self._inside(loops=loops):
                        over = self._value(part.iter, inner)
                    loops = (*loops, Loop(node, over))
                    self._bind(part.target, self._element(over), inner)
                with self._inside(loops=loops):
                    parts = [each for part in node.generators for each in part.ifs]
                    is_dict = isinstance(node, ast.DictComp)
                    parts += [node.key, node.value] if is_dict else [node.elt]
                    return Items("", (*(self._value(each, inner) for each in parts),)[-1:])
            case ast.NamedExpr():
                value = self._value(node.value, scope)
                self._bind(node.target, value, scope)
                return value
            case _:
                parts = self._children(node, scope)
                is_same = isinstance(node, ast.Starred | ast.Await | ast.YieldFrom)
                return parts[0] if is_same else UNKNOWN

    def _attribute(self, owner: Value, name: str) -> Value:
        if isinstance(owner, Library):
            inner = f"{owner.name}.{name}"
            if owner.name not in self._sources or inner in self._sources:
                return Library("", inner if inner in self._sources else canonical(inner))
            return self._module(owner.name).names.get(name, UNKNOWN)
        if isinstance(owner, Instance):
            found = owner.attributes.get(name) or owner.made.find(name)
            if isinstance(found, OwnFunction) and name not in owner.attributes:
                return replace(found, owner=owner)
            return found or UNKNOWN
        if isinstance(owner, Class):
            return owner.find(name) or UNKNOWN
        return Value("optimizer" if name == "optimizer" and owner.kind == "model" else "")

    def _element(self, over: Value) -> Value:
        """Return what a loop's target is bound to."""
        call = made_by(over)
        if call is not None and call.name in ("enumerate", "zip"):
            inner = [self._element(value) for value in call.args]
            return Items("", (UNKNOWN, *inner[:1]) if call.name == "enumerate" else tuple(inner))
        if call is not None and call.args and call.name.startswith(_PASSING):
            return self._element(call.args[0])
        return joined(over.values) if isinstance(over, Items) else _item(over, "each")

    # ---- calls

    def _record(self, name: str, node: ast.AST, scope: Scope, **given: Any) -> Call:
        if len(self.calls) >= _MOST_CALLS:
            raise _Full
        order = len(self.calls)
        context, source = self._context, scope.source
        call = Call(name=name, node=node, source=source, order=order, context=context, **given)
        self.calls.append(call)
        return call

    def _call(self, node: ast.Call, scope: Scope) -> Value:
        owner: Value | None = None
        name = ""
        if isinstance(node.func, ast.Attribute):
            owner, name = self._value(node.func.value, scope), node.func.attr
            function = self._attribute(owner, name)
        else:
            function = self._value(node.func, scope)
        args: list[Value] = []
        unpacks = False
        for given in node.args:
            value = self._value(given, scope)
            if not isinstance(given, ast.Starred):
                args.append(value)
            elif isinstance(value, Items):
                args += value.values
            else:
                unpacks = True
                break
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self._value(keyword.value, scope)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, Items):
                keywords.update(zip(map(str, value.keys), value.values, strict=False))
            else:
                unpacks = True
        arguments: dict[str, Any] = {"args": tuple(args), "keywords": keywords, "unpacks": unpacks}
        if isinstance(function, OwnFunction):
            self._record("own", node, scope, owner=function, **arguments)
            roles = {"traced"} if function.traced else ()
            return self._enter(function, tuple(args), keywords, roles)
        if isinstance(function, Class):
            call = self._record("class", node, scope, owner=function, **arguments)
            instance = Instance(function.kind, made=function, call=call)
            self._objects.append(instance)
            self._method(instance, "__init__", tuple(args), keywords)
            return instance
        if isinstance(function, Library):
            name = function.name
        elif owner is not None:
            name = f"{owner.kind or '?'}.{name}"
        else:
            owner, name = function, f"{function.kind or '?'}.__call__"
        call = self._record(name, node, scope, owner=owner, **arguments)
        if name in _LEAVING:
            raise _Left
        if isinstance(owner, Instance) and owner is function:
            for method in ("__call__", "call"):
                if owner.made.find(method) is not None:
                    value = self._method(owner, method, tuple(args), keywords)
                    return Made("", call) if value is UNKNOWN else value
        if name == "tf.function" and args and isinstance(args[0], OwnFunction):
            return replace(args[0], traced=True)
        if name in ("os.environ.setdefault", "os.putenv"):
            self._record("environ", node, scope, args=call.args)
        if name == "os.environ.update":
            for items in (*args, Items("", tuple(keywords.values()), tuple(keywords))):
                if isinstance(items, Items):
                    for key, value in zip(items.keys, items.values, strict=False):
                        self._record("environ", node, scope, args=(Constant("", key), value))
        if not name.startswith("functools."):
            self._callbacks(call)
        return Made(kind_made_by(name), call)

    def _method(
        self,
        owner: Instance,
        name: str,
        args: tuple[Value, ...] = (),
        keywords: Mapping[str, Value] = {},
        roles: Iterable[str] = (),
    ) -> Value:
        """Enter a method of an object of the program, if its class has it."""
        method = owner.made.find(name)
        if not isinstance(method, OwnFunction):
            return UNKNOWN
        return self._enter(replace(method, owner=owner), args, keywords, roles)

    def _callbacks(self, call: Call) -> None:
        """Enter the functions that a call of a library is given: it calls them."""
        args: tuple[Value, ...] = ()
        keywords: dict[str, Value] = {}
        roles = set[str]()
        if call.name in ("strategy.run", "strategy.experimental_run_v2"):
            given, named = call.argument(1, "args"), call.argument(2, "kwargs")
            args = given.values if isinstance(given, Items) else ()
            if isinstance(named, Items):
                keywords = dict(zip(map(str, named.keys), named.values, strict=False))
            roles.add("replica")
        elif call.name.startswith("dataset."):
            roles.add("map")
        elif call.name in ("model.fit", "model.train_on_batch"):
            if isinstance(call.owner, Instance):
                self._method(call.owner, "train_step", (Value("batch"),), roles={"keras"})
        for value in (*call.args, *call.keywords.values()):
            if isinstance(value, OwnFunction):
                own = {*roles, "traced"} if value.traced else roles
                self._enter(value, args, keywords, own)

    def _enter(
        self,
        function: OwnFunction,
        args: tuple[Value, ...] = (),
        keywords: Mapping[str, Value] = {},
        roles: Iterable[str] = (),
    ) -> Value:
        """Walk a function with what it is given; return what it returns."""
        node, functions = function.node, self._context.functions
        count = self._num_walks.get(node, 0)
        if node in functions or count >= _MOST_WALKS or len(functions) >= _DEEPEST:
            return self._returned.get(node, UNKNOWN)
        self._num_walks[node] = count + 1
        outer = function.scope.outer if function.scope.is_class else function.scope
        scope = Scope(function.scope.source, outer=outer)
        given = node.args
        listed = [*given.posonlyargs, *given.args]
        # Of a call that is not known, a default is only one of the possible values.
        if args or keywords or function.owner is not None:
            for parameters, defaults in (
                (listed[len(listed) - len(given.defaults) :], given.defaults),
                (given.kwonlyargs, given.kw_defaults),
            ):
                for parameter, default in zip(parameters, defaults, strict=True):
                    if default is not None:
                        scope.names[parameter.arg] = self._value(default, function.scope)
        decorators = getattr(node, "decorator_list", ())
        is_static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in decorators)
        if function.owner is not None and not is_static:
            args = (function.owner, *args)
        for number, parameter in enumerate((*listed, *given.kwonlyargs)):
            name = parameter.arg
            if name in keywords:
                scope.names[name] = keywords[name]
            elif number < min(len(args), len(listed)):
                scope.names[name] = args[number]
            elif name not in scope.names:
                # Of such a parameter only the name is known.
                scope.names[name] = Value(name if name in _USUAL_KINDS else "")
        if given.vararg is not None:
            scope.names[given.vararg.arg] = Items("", args[len(listed) :])
        if given.kwarg is not None:
            scope.names[given.kwarg.arg] = UNKNOWN
        before, self._returns = self._returns, []
        with self._inside(functions=(*functions, node), roles=self._context.roles.union(roles)):
            if isinstance(node, ast.Lambda):
                value = self._value(node.body, scope)
            else:
                self._block(node.body, scope)
                value = joined(self._returns)
        self._returns = before
        self._returned[node] = value
        return value


def _computed(sign: ast.operator | ast.cmpop, left: Value, right: Value) -> Value:
    """Return the constant that an operator gives of numbers, or of two texts."""
    operate, most = _OPERATORS.get(type(sign)), _LARGEST.get(type(sign), 2**60)
    first, second = constant(left), constant(right)
    if isinstance(first, int | float) and isinstance(second, int | float):
        is_known = max(abs(first), abs(second)) <= most
    else:
        are_texts = isinstance(first, str) and isinstance(second, str)
        is_known = are_texts and isinstance(sign, ast.Add | ast.Eq | ast.NotEq)
    if operate is None or not is_known:
        return UNKNOWN
    try:
        return Constant("", operate(first, second))
    except (TypeError, ValueError, ArithmeticError):
        return UNKNOWN


def _item(owner: Value, index: object) -> Value:
    if isinstance(owner, Items):
        if not owner.keys and isinstance(index, int):
            if -len(owner.values) <= index < len(owner.values):
                return owner.values[index]
        if index is not None and index in owner.keys:
            return owner.values[owner.keys.index(index)]
        return joined(owner.values)
    kind = ELEMENTS.get(owner.kind, "")
    return Made(kind, owner.call, (*owner.path, index)) if isinstance(owner, Made) else Value(kind)
