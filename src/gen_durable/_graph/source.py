"""The source of functions, and what the names in it refer to. Nothing is executed."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final, TypeAlias

from ..definition import StepRef
from ..machine import Step

__all__ = ["FunctionNode", "Scope", "argument", "function_node", "own_nodes", "source_line"]

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

# How many assignments and helpers are followed from one expression. More is a cycle, or beyond what a reader follows.
_MAX_DEPTH: Final = 8


@functools.lru_cache(maxsize=64)
def _functions_of(filename: str) -> Mapping[tuple[str, int], FunctionNode]:
    """Return the functions of a file by name and first line, decorators included. Empty if it cannot be parsed."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return {
        (node.name, min([node.lineno, *(each.lineno for each in node.decorator_list)])): node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def function_node(function: FunctionType) -> FunctionNode | None:
    """Return the syntax tree of a function; `None` if its source is not available."""
    code = function.__code__
    return _functions_of(code.co_filename).get((code.co_name, code.co_firstlineno))


def source_line(function: Any) -> int:
    """Return the line of the `def` of a function; 0 if the source is not available."""
    unwrapped = inspect.unwrap(function)
    node = function_node(unwrapped) if isinstance(unwrapped, FunctionType) else None
    return node.lineno if node is not None else 0


def own_nodes(function: FunctionNode) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions inside it."""
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def argument(call: ast.Call, keyword: str, position: int | None = None) -> ast.expr | None:
    """Return an argument of a call by keyword or position; `None` if it is not given."""
    for item in call.keywords:
        if item.arg == keyword:
            return item.value
    return call.args[position] if position is not None and len(call.args) > position else None


class Scope:
    """What one function of a machine refers to by its names."""

    def __init__(self, function: FunctionType, node: FunctionNode, machine: type[Any]) -> None:
        self.function = function
        self.node = node
        self.machine = machine
        self.file = function.__code__.co_filename
        arguments = [*node.args.posonlyargs, *node.args.args]
        self._self = arguments[0].arg if arguments else ""

    def resolve(self, expression: ast.expr, depth: int = 0) -> Any:
        """Return the object that an expression certainly refers to; `None` if that is not known."""
        if depth > _MAX_DEPTH:
            return None
        match expression:
            case ast.Constant():
                return expression.value
            case ast.Name(id=name):
                assigned = self.assigned(name)
                if len(assigned) == 1:
                    return self.resolve(assigned[0], depth + 1)
                return None if assigned else self._outer(name)
            case ast.Attribute():
                return self._attribute(expression, depth)
            case ast.List() | ast.Tuple():
                return [self.resolve(item, depth + 1) for item in expression.elts]
            case ast.Subscript():  # Done[Receipt](…)
                generic = self.resolve(expression.value, depth + 1)
                return generic if isinstance(generic, type) else None
            case _:
                return None

    def is_self(self, expression: ast.expr) -> bool:
        """Whether an expression is the machine: `self`, `type(self)`."""
        match expression:
            case ast.Name(id=name):
                return name == self._self
            case ast.Call(func=ast.Name(id="type"), args=[ast.Name(id=name)]):
                return name == self._self
            case _:
                return False

    def _attribute(self, expression: ast.Attribute, depth: int) -> Any:
        if self.is_self(expression.value):
            found: Any = inspect.getattr_static(self.machine, expression.attr, None)
            return getattr(found, "__func__", found)  # of a staticmethod or classmethod
        if isinstance(expression.value, ast.Call) and getattr(expression.value.func, "id", "") == "super":
            return self._inherited(expression.attr)
        owner = self.resolve(expression.value, depth + 1)
        if isinstance(owner, ModuleType | type):
            found = inspect.getattr_static(owner, expression.attr, None)
            return getattr(found, "__func__", found)
        return None

    def _inherited(self, name: str) -> Any:
        """Return what `super().name` is: the attribute of the next class after the one that defines this function."""
        classes = iter(self.machine.__mro__)
        for cls in classes:
            if any(_function_of(value) is self.function for value in vars(cls).values()):
                break
        return next((vars(cls)[name] for cls in classes if name in vars(cls)), None)

    def _outer(self, name: str) -> Any:
        if name in self.function.__code__.co_freevars:
            cells = dict(
                zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=False)
            )
            try:
                return cells[name].cell_contents
            except (KeyError, ValueError):  # not assigned yet
                return None
        return self.function.__globals__.get(name)

    def assigned(self, name: str) -> list[ast.expr]:
        """Return the expressions that a local name is bound to in this function."""
        found: list[ast.expr] = []
        for node in ast.walk(self.node):
            match node:
                case ast.Assign(targets=targets, value=value):
                    if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                        found.append(value)
                case ast.AnnAssign(target=ast.Name(id=bound), value=ast.expr() as value):
                    found += [value] * (bound == name)
                case ast.NamedExpr(target=ast.Name(id=bound), value=value):
                    found += [value] * (bound == name)
                case (
                    ast.For(target=ast.Name(id=bound), iter=ast.List(elts=items) | ast.Tuple(elts=items))
                    | ast.comprehension(
                        target=ast.Name(id=bound), iter=ast.List(elts=items) | ast.Tuple(elts=items)
                    )
                ):
                    found += items if bound == name else []
                case _:
                    pass
        return found

    def is_local_function(self, expression: ast.expr) -> bool:
        """Whether an expression is a function defined inside this one; its outcomes are read with it."""
        return isinstance(expression, ast.Name) and any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == expression.id
            for node in ast.walk(self.node)
            if node is not self.node
        )

    def helper(self, expression: ast.expr, *, is_returned: bool) -> FunctionType | None:
        """Return the function whose outcomes are those of this one; `None` if the call is not one to follow.

        Methods of the machine and functions of the same module are followed, and others if their value is returned.
        """
        found = _function_of(self.resolve(expression))
        if not isinstance(found, FunctionType):
            return None
        found = inspect.unwrap(found)
        package = found.__module__.partition(".")[0] if found.__module__ else ""
        if not isinstance(found, FunctionType) or (package == "gen_durable" and not _is_demo(found)):
            return None
        owner = expression.value if isinstance(expression, ast.Attribute) else None
        is_method = owner is not None and (self.is_self(owner) or isinstance(owner, ast.Call))
        is_near = found.__module__ == self.function.__module__
        return found if is_method or is_near or is_returned else None

    def targets(self, expression: ast.expr, depth: int = 0) -> Iterator[str | None]:  # noqa: C901 - one case per form
        """Yield the names of the steps that an expression may refer to, and `None` for each part that is not known."""
        if depth > _MAX_DEPTH:
            yield None
            return
        match expression:
            case ast.IfExp(body=body, orelse=other):
                yield from self.targets(body, depth + 1)
                yield from self.targets(other, depth + 1)
            case ast.BoolOp(values=values):
                for value in values:
                    yield from self.targets(value, depth + 1)
            case ast.Name(id=name) if assigned := self.assigned(name):
                for value in assigned:
                    yield from self.targets(value, depth + 1)
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                yield from self.targets(value, depth + 1)
            case ast.Subscript(value=table):
                yield from self._table(table, depth)
            case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[_, *defaults]):
                yield from self._table(table, depth)
                for default in defaults:
                    yield from self.targets(default, depth + 1)
            case ast.Call(func=function):
                yield from self._returned(function, depth)
            case _:
                yield self._target(expression)

    def _target(self, expression: ast.expr) -> str | None:
        value = self.resolve(expression)
        if isinstance(value, StepRef):
            return value.name
        if isinstance(value, str):
            return value
        if isinstance(expression, ast.Attribute) and self.is_self(expression.value):
            return None if self._is_set_by_init(expression.attr) else expression.attr
        return None

    def is_missing(self, name: str) -> bool:
        """Whether the machine has no attribute of this name."""
        found = inspect.getattr_static(self.machine, name, None)
        return found is None and not self._is_set_by_init(name) and not hasattr(self.machine, "__getattr__")

    def _is_set_by_init(self, name: str) -> bool:
        """Whether `__init__` sets this attribute, so that its value is not known here."""
        init = inspect.getattr_static(self.machine, "__init__", None)
        return isinstance(init, FunctionType) and name in init.__code__.co_names

    def _returned(self, function: ast.expr, depth: int) -> Iterator[str | None]:
        """Yield the targets that a helper returns: `Next(self.after(ctx))`."""
        helper = self.helper(function, is_returned=True)
        node = function_node(helper) if helper is not None else None
        if helper is None or node is None:
            yield None
            return
        inner = Scope(helper, node, self.machine)
        for statement in own_nodes(node):
            if isinstance(statement, ast.Return) and statement.value is not None:
                yield from inner.targets(statement.value, depth + 1)

    def _table(self, expression: ast.expr, depth: int) -> Iterator[str | None]:
        """Yield the values of a routing table: `{"card": self.charge, …}[kind]`, local or a constant."""
        match expression:
            case ast.Name(id=name) if assigned := self.assigned(name):
                for value in assigned:
                    yield from self._table(value, depth + 1)
            case ast.Dict(values=values) | ast.List(elts=values) | ast.Tuple(elts=values):
                for value in values:
                    yield from self.targets(value, depth + 1)
            case _:
                table: Any = self.resolve(expression)
                found: list[Any] = [None]
                if isinstance(table, Mapping):
                    found = [*table.values()]
                elif isinstance(table, list | tuple):
                    found = [*table]
                names = [value.name if isinstance(value, StepRef) else value for value in found]
                yield from (name if isinstance(name, str) else None for name in names)


def _function_of(value: Any) -> Any:
    """Return the function of a step, a staticmethod or a classmethod; any other value unchanged."""
    if isinstance(value, Step):
        return value.function
    return getattr(value, "__func__", value)


def _is_demo(function: FunctionType) -> bool:
    return function.__module__.startswith("gen_durable.demo")
