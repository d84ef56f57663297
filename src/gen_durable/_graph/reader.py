"""Read the graph of a machine from the source of its steps.

Outcomes name their targets by reference (`Next(self.ship)`) or by a constant (`Next("ship")`), so the transitions are
in the source. The reader collects every outcome that a step and its helpers make: methods of the machine, functions of
the same module, and functions whose value the step returns. It does not run them. A step that computes its target
declares it: `@step(to=…)`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import msgspec

from .._dictionary import did_you_mean
from ..definition import Definition, MachineDef, StepDef, StepRef, definition_of
from ..findings import Finding, Severity
from ..jobs import Job
from ..machine import Machine
from ..outcome import Await, Cancel, Discard, Done, Next, Retry, RetryAfter, ScheduleChildren, Stop
from ..refs import Insertable, Spec
from ..signals import Signal
from .context_calls import stream_names, unawaited_calls
from .model import CANCELLED, DONE, FAILED, HANDLE, Edge, EdgeKind, Graph, Node
from .source import FunctionNode, Scope, argument, function_node, own_nodes, source_line

__all__ = ["Reading", "read"]

_ENDS: Final[dict[Any, tuple[str, EdgeKind]]] = {
    Done: (DONE, "done"),
    Stop: (FAILED, "stop"),
    Discard: (FAILED, "stop"),
    Cancel: (CANCELLED, "cancel"),
}
_RETRIES: Final = (Retry, RetryAfter)
_TRANSITIONS: Final[dict[Any, EdgeKind]] = {Next: "next", Await: "await", ScheduleChildren: "children"}
_OUTCOMES: Final = (*_ENDS, *_RETRIES, *_TRANSITIONS)


class Reading(msgspec.Struct, frozen=True):
    """A graph, and what the reader found on the way."""

    graph: Graph
    findings: tuple[Finding, ...]
    """Targets that do not exist, undeclared names, calls without `await`, targets that could not be read."""
    raising: frozenset[str]
    """Steps with a `raise` statement: an exception may end the instance."""
    undoing: frozenset[str] = frozenset()
    """Undo steps that return Done. The graph has an edge for it only if another path leads to the step as well:
    otherwise the engine continues the undo."""


def read(machine: Insertable[Any, Any]) -> Reading:
    """Read the graph of a machine or job."""
    definition = definition_of(machine)
    if isinstance(machine, Job):
        reader = _Reader(type(machine), definition)
        return Reading(_job_graph(machine, definition), reader.job_findings(machine), frozenset())
    return _Reader(machine if isinstance(machine, type) else type(machine), definition).read()


def _job_graph(job: Job[Any, Any], definition: MachineDef) -> Graph:
    (step,) = definition.steps.values()
    function = _job_function(job, definition)
    attempts = step.retry.max_attempts if step.retry is not None else 1
    edges = [
        Edge(source=step.name, target=DONE, kind="done"),
        Edge(source=step.name, target=FAILED, kind="stop"),
    ]
    if attempts > 1:
        edges.append(Edge(source=step.name, target=step.name, kind="retry", max_attempts=attempts))
    return Graph(
        machine=definition.name,
        version=definition.version,
        initial=step.name,
        nodes=(
            Node(id=step.name, doc=_summary(function), line=source_line(function)),
            Node(id=DONE, kind="done"),
            Node(id=FAILED, kind="failed"),
        ),
        edges=tuple(edges),
        doc=_summary(function),
        file=_file(function),
    )


def _job_function(job: Job[Any, Any], definition: MachineDef) -> Any:
    (step,) = definition.steps.values()
    return inspect.unwrap(getattr(job, "_function", step.function))


class _Reader:
    """Reads one machine. `_source` is the step, or `handle`, whose outcomes are being collected."""

    def __init__(self, cls: type[Any], definition: MachineDef) -> None:
        self._class = cls
        self._definition = definition
        self._edges: dict[tuple[object, ...], Edge] = {}
        self._findings: list[Finding] = []
        self._unread: dict[str, None] = {}
        self._raising: set[str] = set()
        self._undoing: set[str] = set()
        self._source = ""
        self._visited: set[tuple[FunctionType, bool]] = set()
        self._without_source: dict[str, FunctionType] = {}
        self._children: dict[str, None] = {}
        self._unread_children: tuple[Scope, ast.Call] | None = None
        self._opaque_specs: tuple[Scope, ast.Call] | None = None
        self._calls_default_handle = False

    def read(self) -> Reading:
        for step in self._definition.steps.values():
            self._collect(step.name, step.function)
            self._add_declared(step)
        handler: Any = inspect.getattr_static(self._class, HANDLE)
        is_overridden = handler is not inspect.getattr_static(Machine, HANDLE)
        if is_overridden:
            self._collect(HANDLE, handler)
        else:
            self._calls_default_handle = True
        for step in self._definition.steps.values():
            self._add_options(step)
        self._find_without_source()
        self._drop_ends_of_undo()
        graph = Graph(
            machine=self._definition.name,
            version=self._definition.version,
            initial=self._definition.initial,
            nodes=tuple(self._nodes(handler if is_overridden else None)),
            edges=tuple(self._edges.values()),
            unread=tuple(self._unread),
            doc=_summary(self._class),
            file=_file(self._class),
        )
        return Reading(
            graph, tuple(self._findings), frozenset(self._raising), undoing=frozenset(self._undoing)
        )

    def job_findings(self, job: Job[Any, Any]) -> tuple[Finding, ...]:
        """Return what is wrong in the function of a job."""
        (self._source,) = self._definition.steps
        function = _job_function(job, self._definition)
        if isinstance(function, FunctionType) and (node := function_node(function)) is not None:
            self._find_unawaited(Scope(function, node, self._class))
        return tuple(self._findings)

    def _nodes(self, handler: Any) -> Iterator[Node]:
        for step in self._definition.steps.values():
            yield Node(id=step.name, doc=_summary(step.function), line=source_line(step.function))
        if handler is not None:
            yield Node(id=HANDLE, kind="handle", doc=_summary(handler), line=source_line(handler))
        reached = {edge.target for edge in self._edges.values()}
        if DONE in reached:
            yield Node(id=DONE, kind="done")
        if FAILED in reached:
            yield Node(id=FAILED, kind="failed")
        if CANCELLED in reached:
            yield Node(id=CANCELLED, kind="cancelled")

    def _collect(self, source: str, function: Any) -> None:
        self._source = source
        self._visited = set()
        self._children = {}
        self._unread_children = self._opaque_specs = None
        found = inspect.unwrap(function)
        if isinstance(found, FunctionType):
            self._visit(found, is_returned=True)
        # Specs may be made in a helper or a loop: the only children of a step are all that it makes.
        keys = [key for key, edge in self._edges.items() if edge.source == source and edge.kind == "children"]
        for key in keys:
            if len(keys) == 1 or not self._edges[key].children:
                self._edges[key] = msgspec.structs.replace(self._edges[key], children=tuple(self._children))
        if keys:
            self._find_unread_children()

    def _find_unread_children(self) -> None:
        # Opaque specs are made where the reader does not follow.
        place = self._unread_children or (None if self._children else self._opaque_specs)
        if place is not None:
            self._find(
                "children.unread",
                f"the machines of the children of {self._name()} of machine '{self._definition.name}' cannot all be "
                "read from the code",
                "name the machine in each Spec(Machine, …)",
                *place,
                severity="notice",
            )

    def _visit(self, function: FunctionType, *, is_returned: bool) -> None:
        if (function, is_returned) in self._visited:
            return
        self._visited.add((function, is_returned))
        node = function_node(function)
        if node is None:
            self._guess(function)
            return
        if is_returned and _is_stub(node):
            self._unread[self._source] = None
        scope = Scope(function, node, self._class)
        if (function, not is_returned) not in self._visited:
            self._find_unawaited(scope)
            self._find_undeclared_streams(scope)
        calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
        returned = set(map(id, _returned_calls(node)))
        for call in sorted(calls, key=lambda each: (each.lineno, each.col_offset)):
            self._read_call(scope, call, is_returned=id(call) in returned)
        for each in own_nodes(node):
            if isinstance(each, ast.Raise):
                self._raising.add(self._source)
            is_unread = (
                is_returned
                and isinstance(each, ast.Return)
                and each.value is not None
                and not self._is_readable(scope, each.value)
            )
            if is_unread:
                self._mark_unread(scope, each, "the returned outcome")

    def _guess(self, function: FunctionType) -> None:
        """Without a source, as in a frozen application: every step that the code mentions may follow."""
        self._unread[self._source] = None
        self._without_source.setdefault(self._source, function)
        for name in function.__code__.co_names:
            if name in self._definition.steps:
                self._add(Edge(source=self._source, target=name, kind="possible"))

    def _read_call(self, scope: Scope, call: ast.Call, *, is_returned: bool) -> None:
        callee = scope.resolve(call.func)
        outcome = callee if isinstance(callee, type) else None
        if outcome in _ENDS:
            target, kind = _ENDS[outcome]
            self._add(Edge(source=self._source, target=target, kind=kind, line=call.lineno))
        elif outcome in _RETRIES:
            self._add_retry(scope, call)
        elif outcome in _TRANSITIONS:
            self._read_transition(scope, call, outcome)
        elif callee is Spec:
            names = [*_child_names(scope, [call])]
            self._children.update(dict.fromkeys(filter(None, names)))
            if None in names:
                self._unread_children = scope, call
        elif callee is inspect.getattr_static(Machine, HANDLE):
            self._calls_default_handle = True
        elif (helper := scope.helper(call.func, is_returned=is_returned)) is not None:
            self._visit(helper, is_returned=is_returned)

    def _add_retry(self, scope: Scope, call: ast.Call) -> None:
        sources = self._definition.steps if self._source == HANDLE else (self._source,)
        given = argument(call, "delay", 0)
        for source in sources:
            self._add(
                Edge(
                    source=source,
                    target=source,
                    kind="retry",
                    is_delayed=given is not None,
                    delay=_duration(scope, given),
                    line=call.lineno,
                )
            )

    def _read_transition(self, scope: Scope, call: ast.Call, outcome: Any) -> None:
        expression = argument(call, "step", 0) if outcome is Next else argument(call, "then")
        if expression is None:
            return  # an error that type checkers report
        children: list[str] = []
        if outcome is ScheduleChildren:
            found = [*_child_names(scope, _parts(scope, call))]
            children = [*filter(None, found)]
            specs = argument(call, "children", 0)
            if not found and not (isinstance(specs, ast.List | ast.Tuple) and not specs.elts):
                self._opaque_specs = self._opaque_specs or (scope, call)
        timeout = argument(call, "timeout") if outcome is Await else None
        delay = argument(call, "delay") if outcome is Next else None
        signals = tuple(self._signals(scope, call)) if outcome is Await else ()
        names = [*scope.targets(expression)]
        if None in names:
            self._mark_unread(scope, call, f"the target of this {outcome.__name__}")
        for name in dict.fromkeys(filter(None, names)):
            if not self._is_step(scope, call, name):
                continue
            self._add(
                Edge(
                    source=self._source,
                    target=name,
                    kind=_TRANSITIONS[outcome],
                    signals=signals,
                    has_timeout=outcome is Await
                    and (timeout is not None or argument(call, "deadline") is not None),
                    timeout=_duration(scope, timeout),
                    is_delayed=delay is not None,
                    delay=_duration(scope, delay),
                    children=tuple(children),
                    line=call.lineno,
                )
            )

    def _is_step(self, scope: Scope, call: ast.Call, name: str) -> bool:
        definition = self._definition
        if name not in definition.steps:
            is_method = callable(inspect.getattr_static(self._class, name, None))
            hint = did_you_mean(name, tuple(definition.steps))
            self._find(
                "step.unknown",
                f"{self._name()} continues with '{name}', which is {'a method but not' if is_method else 'not'} "
                f"a step of machine '{definition.name}'{'' if is_method else hint}",
                "mark it with @step" if is_method else f"the steps are {', '.join(definition.steps)}",
                scope,
                call,
                target=name,
            )
            return False
        step = definition.steps.get(self._source)
        if step is not None and step.to is not None and name not in step.to:
            self._find(
                "step.refused",
                f"{self._name()} of machine '{definition.name}' continues with '{name}', which is not in its to=; the "
                "worker refuses this outcome",
                f"add '{name}' to @step(to=…)",
                scope,
                call,
                target=name,
            )
        return True

    def _signals(self, scope: Scope, call: ast.Call) -> Iterator[str]:
        declared = self._definition.signals
        for name in _missing_attributes(scope, call.args):
            self._find(
                "signal.undeclared",
                f"{self._name()} awaits self.{name}, which machine '{self._definition.name}' does not have"
                f"{did_you_mean(name, tuple(declared))}",
                f'declare it in the class: {name} = Signal("{name}", …)',
                scope,
                call,
                signal=name,
            )
        for name in dict.fromkeys(_signal_names(scope, call.args)):
            if name not in declared:
                self._find(
                    "signal.undeclared",
                    f"{self._name()} awaits signal '{name}', which machine '{self._definition.name}' does not declare"
                    f"{did_you_mean(name, tuple(declared))}",
                    f'declare it in the class: {name if name.isidentifier() else "signal"} = Signal("{name}", …)',
                    scope,
                    call,
                    signal=name,
                )
            yield name

    def _is_readable(self, scope: Scope, value: ast.expr, depth: int = 0) -> bool:
        """Whether a returned expression certainly consists of outcomes that the reader collects."""
        match value:
            case _ if depth > 8:
                return False
            case ast.Await(value=inner) | ast.NamedExpr(value=inner):
                return self._is_readable(scope, inner, depth + 1)
            case ast.IfExp(body=body, orelse=other):
                return all(self._is_readable(scope, each, depth + 1) for each in (body, other))
            case ast.BoolOp(values=values):
                return all(self._is_readable(scope, each, depth + 1) for each in values)
            case ast.Name(id=name):
                assigned = scope.assigned(name)
                return bool(assigned) and all(self._is_readable(scope, each, depth + 1) for each in assigned)
            case ast.Call(func=function):
                if scope.is_local_function(function):
                    return True
                callee = scope.resolve(function)
                if callee is inspect.getattr_static(Machine, HANDLE):
                    return True
                if isinstance(callee, type):
                    return callee in _OUTCOMES
                return self._follow(scope, function)
            case _:
                return isinstance(value, ast.Constant)  # not an outcome: the worker reports it

    def _follow(self, scope: Scope, function: ast.expr) -> bool:
        """Read a helper whose value is returned, directly or by a variable."""
        helper = scope.helper(function, is_returned=True)
        if helper is None:
            return False
        self._visit(helper, is_returned=True)
        return True

    def _add_declared(self, step: StepDef) -> None:
        """Add the targets of `to=` that the source does not show."""
        if step.to is None:
            return
        self._unread.pop(step.name, None)
        read = {edge.target for edge in self._edges.values() if edge.source == step.name}
        for target in step.to:
            if target not in read:
                self._add(Edge(source=step.name, target=target, kind="possible"))

    def _add_options(self, step: StepDef) -> None:
        """Add the transitions that options of a step declare."""
        if step.retry is not None and step.retry.max_attempts > 1 and self._calls_default_handle:
            attempts = step.retry.max_attempts
            self._add(Edge(source=step.name, target=step.name, kind="retry", max_attempts=attempts))
        for kind in ("on_failure", "on_cancel", "undo"):
            target = _step_name(getattr(step, kind, None))
            if target is not None:
                self._add(Edge(source=step.name, target=target, kind=kind))

    def _drop_ends_of_undo(self) -> None:
        """Drop the ends of steps that only undo: the engine continues with the next undo step, or with the end."""
        followed: dict[str, list[str]] = {}
        for edge in self._edges.values():
            if edge.kind != "undo":
                followed.setdefault(edge.source, []).append(edge.target)
        waiting, forward = [self._definition.initial, *followed.get(HANDLE, [])], set[str]()
        while waiting:
            if (step := waiting.pop()) not in forward:
                forward.add(step)
                waiting += followed.get(step, [])
        self._edges = {
            key: edge
            for key, edge in self._edges.items()
            if edge.kind != "done" or edge.source not in self._undoing or edge.source in forward
        }

    def _find_without_source(self) -> None:
        """Report the functions whose source is not available, once for the machine."""
        missing = {step: function for step, function in self._without_source.items() if step in self._unread}
        if not missing:
            return
        self._source, first = next(iter(missing.items()))
        functions = ", ".join(dict.fromkeys(function.__qualname__ for function in missing.values()))
        self._findings.append(
            Finding(
                code="step.unread",
                severity="notice",
                what=f"the source of {functions} is not available, so the targets of "
                f"{', '.join(map(repr, missing))} of machine '{self._definition.name}' cannot be read",
                fix="define the machine in a file, or declare the targets: @step(to=[…])",
                facts={
                    "machine": self._definition.name,
                    "version": self._definition.version,
                    "step": self._source,
                    "file": first.__code__.co_filename,
                    "line": first.__code__.co_firstlineno,
                },
            )
        )

    def _add(self, edge: Edge) -> None:
        if edge.kind == "done" and edge.source in self._definition.undo_steps:
            self._undoing.add(edge.source)
        key = (edge.source, edge.target, edge.kind, edge.signals, edge.children, edge.is_delayed, edge.delay)
        self._edges.setdefault(key, edge)

    def _name(self) -> str:
        return f"'{HANDLE}'" if self._source == HANDLE else f"step '{self._source}'"

    def _find_unawaited(self, scope: Scope) -> None:
        for call, called, fix in unawaited_calls(scope):
            where = f"{self._name()} of machine '{self._definition.name}'"
            what = f"{where} calls {called} without await, so the call does nothing"
            self._find("call.unawaited", what, fix, scope, call)

    def _find_undeclared_streams(self, scope: Scope) -> None:
        declared = self._definition.streams
        for call, name in stream_names(scope) if declared else ():
            if name not in declared:
                self._find(
                    "stream.undeclared",
                    f"{self._name()} publishes to stream '{name}', which machine '{self._definition.name}' does not "
                    f"declare{did_you_mean(name, tuple(declared))}",
                    f'declare it in the class: {name if name.isidentifier() else "stream"} = Stream("{name}", …)',
                    scope,
                    call,
                    stream=name,
                )

    def _mark_unread(self, scope: Scope, node: ast.AST, what: str) -> None:
        step = self._definition.steps.get(self._source)
        if (step is not None and step.to is not None) or self._source in self._unread:
            return
        self._unread[self._source] = None
        self._find(
            "step.unread",
            f"{what} of {self._name()} of machine '{self._definition.name}' cannot be read from the code",
            "declare the targets: @step(to=[…])" if step is not None else "name the target in the outcome",
            scope,
            node,
            severity="notice",
        )

    def _find(
        self,
        code: str,
        what: str,
        fix: str,
        scope: Scope,
        node: Any,
        *,
        severity: Severity = "problem",
        **facts: str,
    ) -> None:
        self._findings.append(
            Finding(
                code=code,
                severity=severity,
                what=what,
                fix=fix,
                facts={
                    "machine": self._definition.name,
                    "version": self._definition.version,
                    "step": self._source,
                    **facts,
                    "file": scope.file,
                    "line": node.lineno,
                },
            )
        )


def _summary(function: Any) -> str:
    """Return the first line of a docstring."""
    doc = getattr(inspect.unwrap(function), "__doc__", None)
    return doc.strip().partition("\n")[0].strip() if isinstance(doc, str) else ""


def _file(defined: Any) -> str:
    """Return the name of the file that defines a class or function; empty if it has none."""
    try:
        return Path(inspect.getsourcefile(defined) or "").name
    except TypeError:  # defined in C, or in a session without files
        return ""


def _step_name(option: object) -> str | None:
    """Return the name of a step that an option refers to."""
    if option is None or isinstance(option, str):
        return option
    name = option.name if isinstance(option, StepRef) else getattr(option, "__name__", None)
    return name if isinstance(name, str) else None


def _returned_calls(node: FunctionNode) -> Iterator[ast.Call]:
    """Yield the calls whose values a function returns, directly or by a condition."""
    waiting = [each.value for each in own_nodes(node) if isinstance(each, ast.Return)]
    while waiting:
        match waiting.pop():
            case ast.Call() as call:
                yield call
            case ast.Await(value=inner) | ast.NamedExpr(value=inner):
                waiting.append(inner)
            case ast.IfExp(body=body, orelse=other):
                waiting += [body, other]
            case ast.BoolOp(values=values):
                waiting += values
            case _:
                pass


def _is_stub(node: FunctionNode) -> bool:
    """Whether the body of a function is left out: `...`."""
    return all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in node.body)


def _signal_names(scope: Scope, arguments: Iterable[ast.expr]) -> Iterator[str]:
    for expression in arguments:
        match expression:
            case ast.Starred(value=inner):
                yield from _signal_names(scope, [inner])
            case ast.IfExp(body=body, orelse=other):
                yield from _signal_names(scope, [body, other])
            case _:
                value = scope.resolve(expression)
                items: list[Any] = [*value] if isinstance(value, list | tuple | set | frozenset) else [value]
                for item in items:
                    if isinstance(item, Signal):
                        yield item.name
                    elif isinstance(item, str):
                        yield item


def _missing_attributes(scope: Scope, arguments: Iterable[ast.expr]) -> Iterator[str]:
    """Yield the attributes of the machine that arguments name and that it does not have."""
    for expression in arguments:
        match expression:
            case ast.Starred(value=inner):
                yield from _missing_attributes(scope, [inner])
            case ast.IfExp(body=body, orelse=other):
                yield from _missing_attributes(scope, [body, other])
            case ast.Attribute(value=owner, attr=name) if scope.is_self(owner) and scope.is_missing(name):
                yield name
            case _:
                pass


def _duration(scope: Scope, expression: ast.expr | None) -> timedelta | None:
    """Return a constant duration: `timedelta(days=3)`, or a name that refers to one."""
    if isinstance(expression, ast.Name) and len(assigned := scope.assigned(expression.id)) == 1:
        expression = assigned[0]
    if isinstance(expression, ast.Call) and scope.resolve(expression.func) is timedelta:
        try:
            return timedelta(
                *(ast.literal_eval(each) for each in expression.args),
                **{each.arg: ast.literal_eval(each.value) for each in expression.keywords if each.arg},
            )
        except (ValueError, TypeError, OverflowError):
            return None
    value = scope.resolve(expression) if expression is not None else None
    return value if isinstance(value, timedelta) else None


def _parts(scope: Scope, call: ast.Call) -> list[ast.AST]:
    """Return a call and the expressions that the names in its first argument are bound to."""
    first = call.args[0] if call.args else None
    names = [each.id for each in ast.walk(first) if isinstance(each, ast.Name)] if first is not None else []
    return [call, *(value for name in names for value in scope.assigned(name))]


def _child_names(scope: Scope, parts: Iterable[ast.AST]) -> Iterator[str | None]:
    """Yield the machine of each `Spec(Machine, …)`, and `None` if one is not known."""
    found: dict[str | None, None] = {}
    for part in parts:
        for node in ast.walk(part):
            if isinstance(node, ast.Call) and node.args and scope.resolve(node.func) is Spec:
                machine = node.args[0]
                bound = scope.assigned(machine.id) if isinstance(machine, ast.Name) else []
                for expression in bound or [machine]:
                    found[_child_name(scope, expression)] = None
    yield from found


def _child_name(scope: Scope, expression: ast.expr) -> str | None:
    child = scope.resolve(expression)
    cls = child if isinstance(child, type) else type(child)
    definition = getattr(child, "__definition__", None)
    return definition.name if issubclass(cls, Definition) and isinstance(definition, MachineDef) else None
