"""Run one execution: the step, its handler if the step raises, and settle the outcome into a commit entry."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from .._checks import duration_text
from .._core.failures import failure_json, traceback_text
from .._core.hydration import StepChannel, open_context, state_of
from .._core.model import CommitEntry, EffectFailed, Execution
from .._core.new_rows import dead_letter
from .._core.registry import Registered, Registry
from .._core.settle import (
    STORED_STATE,
    Bounds,
    cancel,
    checked_outcome,
    defer,
    no_handler,
    outcome_of,
    rejoin,
    release,
    settle,
    state_of_end,
)
from .._tracing import Span, Tracing, tracing
from .._typing import KEEP
from ..context import Context, end_context
from ..definition import MachineDef, StepDef
from ..errors import CodecError, LeaseLostError, ProcessStepError, StepTimeoutError
from ..jobs import Job
from ..machine import Machine
from ..outcome import (
    Cancel,
    Decision,
    Discard,
    Next,
    Outcome,
    Retry,
    RetryAfter,
    Stop,
    message_text,
    reason_text,
)
from ..signals import mark_taken
from .middleware import Middleware, wrapped
from .processes.process_pool import ProcessDiedError, ProcessPool
from .threads import Threads
from .unknown_steps import UnknownSteps
from .user_exceptions import as_exception, current_task, decision_in, found_live_child, is_task_cancelled

__all__ = ["Executor", "log_failure"]

R = TypeVar("R")
_log: Final = logging.getLogger("gen_durable.worker")


class Executor:
    """Runs the steps of registered machines. All user code except effects is called here."""

    def __init__(
        self,
        registry: Registry,
        bounds: Bounds,
        threads: Threads,
        *,
        processes: ProcessPool | None = None,
        middleware: Sequence[Middleware] = (),
        resources: Any = None,
        channel: StepChannel | None = None,
    ) -> None:
        self._registry = registry
        self._bounds = bounds
        self._threads = threads
        self._processes = processes
        self._middleware = middleware
        self._unknown_steps = UnknownSteps()
        self.resources: Any = resources
        """`ctx.resources` of all steps."""
        self.channel: StepChannel | None = channel
        """Through which all steps talk to their worker."""

    def run(
        self, execution: Execution, task: asyncio.Task[Any] | None, *, may_chain: bool
    ) -> Coroutine[Any, Any, CommitEntry]:
        """Execute one step in this task and return the entry to commit.

        Raises CancelledError if the task itself is cancelled, ProcessDiedError if the process of the step died.
        """
        active = tracing()
        if active is None:
            return self._run(execution, task, may_chain=may_chain)
        return self._run_traced(execution, task, active, may_chain=may_chain)

    async def _run_traced(
        self, execution: Execution, task: asyncio.Task[Any] | None, active: Tracing, *, may_chain: bool
    ) -> CommitEntry:
        with active.step(execution) as span:
            entry = await self._run(execution, task, may_chain=may_chain, span=span)
            span.ended(entry.kind, entry.error)
            return entry

    async def _run(
        self,
        execution: Execution,
        task: asyncio.Task[Any] | None,
        *,
        may_chain: bool,
        span: Span | None = None,
    ) -> CommitEntry:
        registered = self._registry.get(execution.fsm, execution.version)
        if registered is None:
            # Only a worker that owns a prefix leases rows of unknown machines: no other worker would run them.
            return no_handler(execution)
        try:
            return await self._step(execution, registered, may_chain=may_chain)
        except (KeyboardInterrupt, ProcessDiedError):
            raise  # this process has to end, or the step cannot be handled
        except BaseException as error:
            if is_task_cancelled(error, task):
                raise
            if found_live_child(error):
                return rejoin(execution)
            if _has_lost_lease(error, execution):
                return release(execution)
            if (decision := decision_in(error)) is not None:
                return self._settle_decision(decision, execution, registered)
            failure = as_exception(error)
        try:
            if span is not None:
                span.failed(failure)
            if execution.cancellation.is_requested:
                # A cancel was acknowledged: any outcome ends as cancelled, so the handler is not called.
                return release(execution)
            return await self._handle(failure, execution, registered, may_chain=may_chain)
        finally:
            # Its traceback refers to this frame: a cycle keeps state and context until a full garbage collection.
            del failure

    def may_interrupt(self, execution: Execution) -> bool:
        """Whether a cancel may interrupt the step while it runs."""
        registered = self._registry.get(execution.fsm, execution.version)
        step = registered.definition.steps.get(execution.step) if registered else None
        return step is not None and (step.interrupt or step.pool == "process")

    def _settle_decision(
        self, decision: Decision, execution: Execution, registered: Registered
    ) -> CommitEntry:
        """Settle a decision that the step raised. `handle` is not called."""
        machine, error = registered.definition, message_text(decision) or type(decision).__name__
        if isinstance(decision, Cancel):
            entry = cancel(execution, error)
            entry.log_line = _log_line(logging.INFO, "instance cancelled by its step", execution, error)
            return entry
        if isinstance(decision, RetryAfter) and not _is_last(execution, machine):
            outcome: Outcome[Any] = Retry(decision.delay)
        elif (on_failure := _on_failure(execution, machine)) is not None and _is_readable(execution, machine):
            outcome = Next(on_failure)
        else:
            outcome = Stop(error)
        verdict = _verdict(outcome)
        entry = settle(execution, machine, outcome, STORED_STATE, self._bounds, error=error)
        entry.log_line = _log_line(logging.WARNING, "step failed", execution, f"{error}; {verdict}")
        return self._failed(entry, execution, decision)

    def _failed(self, entry: CommitEntry, execution: Execution, error: BaseException) -> CommitEntry:
        """Add the exception behind an outcome, and the dead letter if the instance fails."""
        entry.failure = failure_json(error, execution.attempt, execution.step)
        machine = self._registry.find(execution.fsm, execution.version).definition
        if entry.kind == "stop" and not _is_readable(execution, machine):
            # Undo steps read the same state, so they would fail as well. A retry continues at this step.
            entry.skips_undo = True
        if isinstance(error, Discard):
            entry.cause = "stop"
        elif entry.kind == "stop" and _is_last(execution, machine) and _is_retried(error, execution, machine):
            entry.cause = "exhausted"
        else:
            entry.cause = "timeout" if isinstance(error, StepTimeoutError) else "error"
        if entry.kind == "stop" and machine.dead_letter is not None:
            entry.letter = dead_letter(execution, machine, machine.dead_letter, entry.error or "")
        return entry

    async def recover(
        self,
        entry: CommitEntry,
        failed: EffectFailed,
        commit: Callable[[CommitEntry], Awaitable[R | EffectFailed]],
        *,
        may_chain: bool,
        run: Callable[[Coroutine[Any, Any, CommitEntry]], Awaitable[CommitEntry]] | None = None,
    ) -> tuple[CommitEntry, R]:
        """Commit what the machine decides after the effect of its outcome has failed.

        A failed effect is a failed step, so `handle` decides. If the effect of its outcome fails too, the instance
        fails.

        Args:
            entry: the outcome whose effect failed.
            failed: why it failed.
            commit: commits an outcome, or returns that its effect failed.
            may_chain: keep the lease over a plain Next of the handler.
            run: awaits the handler, where that needs preparation.

        Returns:
            The entry that was committed, and the result of its commit.
        """
        execution, started = entry.execution, entry.started
        handling = self._handle_effect(failed.error, execution, may_chain=may_chain)
        entry = await (handling if run is None else run(handling))
        result = await commit(entry)
        if isinstance(result, EffectFailed):
            entry = self._fail_twice(failed.error, result.error, execution)
            entry.started = started
            result = await commit(entry)
        assert not isinstance(result, EffectFailed)  # noqa: S101 - the last entry has no effect
        return entry, result

    async def _handle_effect(self, error: Exception, execution: Execution, *, may_chain: bool) -> CommitEntry:
        if execution.cancellation.is_requested:
            return release(execution)
        registered = self._registry.find(execution.fsm, execution.version)
        if (decision := decision_in(error)) is not None:
            return self._settle_decision(decision, execution, registered)
        return await self._handle(error, execution, registered, may_chain=may_chain)

    def _fail_twice(self, error: Exception, second: Exception, execution: Execution) -> CommitEntry:
        machine = self._registry.find(execution.fsm, execution.version).definition
        reason = Stop(
            f"{reason_text(error)}; then the effect of the outcome of handle raised {reason_text(second)}"
        )
        return self._failed(settle(execution, machine, reason, STORED_STATE, self._bounds), execution, second)

    async def _step(self, execution: Execution, registered: Registered, *, may_chain: bool) -> CommitEntry:
        machine = registered.definition
        step = machine.steps.get(execution.step)
        if step is None:
            # Other code has this step, or will have it. Failing the instance would lose it in a rolling deploy.
            entry = defer(execution, self._unknown_steps.delay(execution))
            entry.log_line = self._unknown_steps.warning(execution, machine)
            return entry
        if step.pool == "process" and self._processes is not None:
            return await self._step_in_process(step, execution, machine, self._processes, may_chain=may_chain)
        context = self._open(execution, machine, state_of(execution, machine))
        try:
            if self._middleware:
                call = partial(self._outcome, step, registered.machine, context)
                outcome = await wrapped(self._middleware, context, call)()
            else:
                value = await self._call(step, registered.machine, context)
                outcome = checked_outcome(value, machine.name, step.name)
        except BaseException:
            end_context(context)
            raise
        return settle(
            execution,
            machine,
            outcome,
            context.state,
            self._bounds,
            may_chain=may_chain,
            emitted=context.emitted,
            taken=end_context(context),
        )

    async def _step_in_process(
        self,
        step: StepDef,
        execution: Execution,
        machine: MachineDef,
        processes: ProcessPool,
        *,
        may_chain: bool,
    ) -> CommitEntry:
        """Run the step in the process pool, which also calls the handler. Middleware runs here, around it."""
        run = partial(
            processes.run,
            execution,
            may_chain=may_chain,
            timeout=_timeout(step, machine.name),
            channel=self.channel,
        )
        if not self._middleware:
            return (await run())[0]
        entry: CommitEntry | None = None
        # What middleware sees. If it passes this on unchanged, the entry of the process is committed.
        shown: Outcome[Any] | ProcessStepError | None = None

        async def call() -> Outcome[Any]:
            nonlocal entry, shown
            entry, raised = await run()
            if raised is not None:
                shown = ProcessStepError(machine.name, step.name, raised)
                raise shown
            shown = outcome_of(entry, machine)
            context.state = state_of_end(entry, machine, context.state)
            mark_taken(context.inbox, set(entry.consumed) - {message.id for message in context.awaited})
            return shown

        context = self._open(execution, machine, state_of(execution, machine))
        try:
            outcome = await wrapped(self._middleware, context, call)()
        except ProcessStepError as error:
            if entry is None or error is not shown:
                raise
            return entry
        finally:
            end_context(context)
        if entry is not None and outcome is shown:
            return entry
        return settle(
            execution,
            machine,
            outcome,
            context.state,
            self._bounds,
            may_chain=may_chain,
            emitted=context.emitted,
            taken=end_context(context),
        )

    def _open(
        self, execution: Execution, machine: MachineDef, state: Any, *, is_strict: bool = True
    ) -> Context[Any]:
        return open_context(
            execution,
            machine,
            self._registry,
            state,
            is_strict=is_strict,
            resources=self.resources,
            channel=self.channel,
        )

    async def _outcome(
        self, step: StepDef, machine: Machine[Any, Any] | Job[Any, Any], context: Any
    ) -> Outcome[Any]:
        return checked_outcome(await self._call(step, machine, context), context.machine, step.name)

    def _call(
        self, step: StepDef, machine: Machine[Any, Any] | Job[Any, Any], context: Any
    ) -> Awaitable[object]:
        timeout = None if step.timeout is None else _timeout(step, context.machine)
        if not step.is_async:
            return self._threads.run(step.function, machine, context, timeout=timeout)
        running: Awaitable[object] = step.function(machine, context)
        return running if timeout is None else _with_timeout(timeout, running)

    async def _handle(
        self, failure: Exception, execution: Execution, registered: Registered, *, may_chain: bool
    ) -> CommitEntry:
        """Call the machine's handler and settle its outcome. It gets the state from before the step."""
        machine, error, task = registered.definition, reason_text(failure), current_task()
        try:
            try:
                state = state_of(execution, machine)
            except CodecError:
                # The stored state stays unchanged; the handler sees it as `ctx.raw_state` only.
                state = STORED_STATE
            context = self._open(
                execution, machine, None if state is STORED_STATE else state, is_strict=False
            )
            try:
                outcome = await self._decide(registered.machine, failure, context)
            except BaseException:
                end_context(context)
                raise
            if (
                state is STORED_STATE
                and isinstance(outcome, Next)
                and outcome.state is KEEP
                and outcome.step == _on_failure(execution, machine)
            ):
                outcome = Stop(failure)  # that step could not read the state either
            current = STORED_STATE if state is STORED_STATE and context.state is None else context.state
            if (
                isinstance(outcome, Retry)
                and state is not STORED_STATE
                and current == state_of(execution, machine)
            ):
                current = STORED_STATE  # unchanged: a state above a lowered max_payload can still be retried
            entry = settle(
                execution,
                machine,
                outcome,
                current,
                self._bounds,
                may_chain=may_chain,
                error=error,
                emitted=context.emitted,
                taken=end_context(context),
            )
            entry.log_line = _log_line_of_failure(execution, machine, failure, outcome)
            return self._failed(entry, execution, failure)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            if is_task_cancelled(raised, task):
                raise
            if found_live_child(raised):
                return rejoin(execution)
            second = raised
        try:
            if (decision := decision_in(second)) is not None:
                return self._settle_decision(decision, execution, registered)
            reason = f"{error}; then handle raised {reason_text(second)}"
            entry = settle(execution, machine, Stop(reason), STORED_STATE, self._bounds)
            traces = f"{traceback_text(failure)}\n{traceback_text(second)}"
            facts = f"{reason}; the instance fails\n{traces}"
            entry.log_line = _log_line(logging.WARNING, "step failed", execution, facts)
            return self._failed(entry, execution, failure)
        finally:
            del second, failure  # break the cycle, as in _run

    async def _decide(
        self, machine: Machine[Any, Any] | Job[Any, Any], failure: Exception, context: Any
    ) -> Outcome[Any]:
        # Like steps: `async def` handlers run on the event loop, `def` handlers in a thread.
        if type(machine).handle in (Machine.handle, Job.handle) or inspect.iscoroutinefunction(
            machine.handle
        ):
            value: object = machine.handle(failure, context)
        else:
            value = await self._threads.run(machine.handle, failure, context)
        if isinstance(value, Awaitable):
            value = await value
        return checked_outcome(value, context.machine, f"handle of {context.step}")


def _is_last(execution: Execution, machine: MachineDef) -> bool:
    """Whether this is the last attempt at the step."""
    step = machine.steps.get(execution.step)
    limit = execution.max_attempts or (step.retry.max_attempts if step and step.retry else None)
    return limit is not None and execution.attempt + 1 >= limit


def _on_failure(execution: Execution, machine: MachineDef) -> str | None:
    step = machine.steps.get(execution.step)
    return None if step is None else step.on_failure


def _is_readable(execution: Execution, machine: MachineDef) -> bool:
    """Whether the stored state can be upgraded and decoded."""
    try:
        state_of(execution, machine)
    except CodecError:
        return False
    return True


def _is_retried(error: BaseException, execution: Execution, machine: MachineDef) -> bool:
    """Whether the retry policy of the step retries this exception, attempts permitting."""
    step = machine.steps.get(execution.step)
    retry = step.retry if step is not None else None
    return retry is None or isinstance(error, RetryAfter) or retry.retries(error)


def _has_lost_lease(error: BaseException, execution: Execution) -> bool:
    """Whether the step has learned that another execution runs it now: there is nothing to handle."""
    return (
        isinstance(error, LeaseLostError)
        and error.id == execution.id
        and error.step_seq == execution.step_seq + 1
    )


def _timeout(step: StepDef, machine: str) -> StepTimeoutError | None:
    return None if step.timeout is None else StepTimeoutError(machine, step.name, step.timeout)


async def _with_timeout(timeout: StepTimeoutError, running: Awaitable[object]) -> object:
    """Await a step; cancel it after its timeout. A step that does not suspend needs no timer."""
    started = asyncio.get_running_loop().time()
    step = running.__await__()
    try:
        waits_for = next(step)
    except StopIteration as ended:
        return ended.value
    timer = asyncio.timeout_at(started + timeout.timeout.total_seconds())
    try:
        async with timer:
            value = await _Suspended(step, waits_for)
    except BaseException as error:
        # The step may convert its cancellation to another error, or raise a TimeoutError of its own.
        if timer.expired() and not is_task_cancelled(error, current_task()):
            raise timeout from error
        raise
    if timer.expired():
        raise timeout
    return value


class _Suspended:
    """A step that has suspended. Awaiting it waits for what the step waits for, and continues the step."""

    __slots__ = ("_step", "_waits_for")

    def __init__(self, step: Generator[Any, Any, object], waits_for: Any) -> None:
        self._step = step
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, object]:
        waits_for = self._waits_for
        while True:
            try:
                received = yield waits_for
            except BaseException as error:  # noqa: BLE001 - raised in the step
                proceed: Callable[[Any], Any] = self._step.throw
                received = error
            else:
                proceed = self._step.send
            try:
                waits_for = proceed(received)
            except StopIteration as ended:
                return ended.value
            finally:
                del received  # a traceback that refers to this frame must not keep its exception alive


def _log_line_of_failure(
    execution: Execution, machine: MachineDef, failure: Exception, outcome: Outcome[Any]
) -> tuple[int, str] | None:
    """The log line with the traceback. The row stores only the last error, without it."""
    step = machine.steps.get(execution.step)
    is_handled = not isinstance(outcome, Stop | Retry) and (step is None or step.on_failure is None)
    level = logging.INFO if is_handled else logging.WARNING
    if not _log.isEnabledFor(level):
        return None
    facts = f"{reason_text(failure)}; {_verdict(outcome)}\n{traceback_text(failure)}"
    return _log_line(level, "step failed", execution, facts)


def _verdict(outcome: Outcome[Any]) -> str:
    """Say what happens to the instance of a failed step, for the log."""
    match outcome:
        case Stop():
            return "the instance fails"
        case Retry():
            return f"retry in {duration_text(outcome.delay)}"
        case Next():
            return f"the instance continues at step '{outcome.step}'"
        case _:
            return f"handle returned {type(outcome).__name__}"


def _log_line(level: int, event: str, execution: Execution, facts: str) -> tuple[int, str]:
    # An exception message may contain a lone surrogate, which log handlers cannot encode.
    text = facts.encode(errors="backslashreplace").decode()
    where = f"{execution.fsm} {execution.id}, step {execution.step}, attempt {execution.attempt + 1}"
    return level, f"{event}: {where}: {text}"


def log_failure(entry: CommitEntry) -> None:
    """Log the exception behind a committed outcome."""
    if entry.log_line is not None:
        level, text = entry.log_line
        _log.log(level, "%s", text)
