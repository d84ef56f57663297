"""`gen-durable check app.py`: find mistakes in machines before they run."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any, Final

import click

from .. import _verbs
from .._core import compatibility
from .._graph import checks
from ..errors import DefinitionError, StateTypeError, UnknownStepError
from ..findings import Finding
from .connection import DatabaseOptions
from .graph import machines_of
from .json_text import json_option, print_json_rows
from .options import load_settings, settings_options
from .rows import clean

__all__ = ["check"]

_PACKAGE: Final = str(Path(__file__).parents[1])


@click.command()
@click.argument("target")
@click.option(
    "--ignore",
    multiple=True,
    type=click.Choice([*checks.CODES, *compatibility.CODES]),
    metavar="CODE",
    help="Do not report findings with this code (repeatable).",
)
@click.option(
    "--against",
    metavar="DSN",
    help="Also find live instances of this database that the code cannot run. Reads only. The DSN of the embedded "
    'server: "$(gen-durable db url)".',
)
@click.option("--all", "every", is_flag=True, help="With --against: read all live instances, not a sample.")
@json_option
@settings_options(only=("schema", "pooler"))
def check(
    target: str,
    ignore: tuple[str, ...],
    against: str | None,
    every: bool,
    as_json: bool,
    settings_file: Path | None,
    **settings: Any,
) -> None:
    """Check the machines in TARGET for mistakes, without running them.

    Finds unknown and unreachable steps, steps without a path to an end, loops that neither wait nor end, awaited
    signals that are not declared, and types that cannot be stored. TARGET is as for `worker`.

    With --against, for CI before a deploy, also finds live instances whose machine, version or step the code does not
    have, states and signals that it cannot decode, awaited signals that it does not declare, and children of unknown
    machines. Workers that have a machine of TARGET count as replaced by it.

    Exit code 0: no problem, at most notices; 1: at least one problem; 2: TARGET cannot be imported, or database
    unreachable.
    """
    if every and against is None:
        raise click.UsageError("--all needs --against")
    try:
        machines = machines_of(target)
        findings = checks.check(*machines)
    except DefinitionError as error:
        machines, findings = [], [_of_definition(error)]
    if against is not None and machines:
        db = DatabaseOptions(against, load_settings(settings_file, settings))
        findings += db.run(_verbs.check(machines, every=every))
    findings = [finding for finding in findings if finding.code not in ignore]
    if as_json:
        print_json_rows(findings)
    else:
        for finding in findings:
            click.echo(f"{clean(_place(finding))}{finding.severity}: {clean(finding.what)} [{finding.code}]")
            click.echo(f"  {clean(finding.fix)}")
        if not findings:
            count = len(machines)
            click.echo(f"no problems found in {count} machine{'' if count == 1 else 's'}")
    if any(finding.severity == "problem" for finding in findings):
        raise SystemExit(1)


def _place(finding: Finding) -> str:
    file, line = finding.facts.get("file"), finding.facts.get("line")
    return f"{file}:{line}: " if file and line else ""


def _of_definition(error: DefinitionError) -> Finding:
    """The finding for a definition that is refused when its module is imported."""
    code = "definition.invalid"
    if isinstance(error, StateTypeError):
        code = "state.unstorable"
    elif isinstance(error, UnknownStepError):
        code = "step.unknown"
    what, _, fix = str(error).rpartition("; ")
    fix = f"{fix if what else 'correct the definition'}; then check again: nothing after it was checked"
    return Finding(code=code, what=what or fix, fix=fix, facts=_place_of(error))


def _place_of(error: DefinitionError) -> dict[str, Any]:
    """Where the definition is: the last line of the user's code before the error."""
    places = [
        {"file": frame.f_code.co_filename, "line": line}
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith((_PACKAGE, "<"))
    ]
    return places[-1] if places else {}
