"""Groups that list by default, and common options of commands that change something."""

from __future__ import annotations

import functools
import getpass
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from .._checks import checked_name
from ..outcome import reason_text

__all__ = ["ListGroup", "action_options", "no_validate_option"]

no_validate_option = click.option(
    "--no-validate",
    is_flag=True,
    help="Do not check state and step against what workers have registered.",
)


class ListGroup(click.Group):
    """A group that runs its command `ls` when it is called without a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Shell completion parses without arguments, too, and offers the commands then.
        is_bare = (
            args[0].startswith("-") and args[0] not in ctx.help_option_names
            if args
            else not ctx.resilient_parsing
        )
        return super().parse_args(ctx, ["ls", *args] if is_bare else args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the commands, or the options of `ls`."""
        if not incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        command = self.commands["ls"]
        return command.shell_complete(click.Context(command, parent=ctx, info_name="ls"), incomplete)


def action_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--reason` and `--actor`; the command gets both, checked. Both are recorded in the audit log."""

    @click.option("--reason", metavar="TEXT", help="Reason, recorded in the audit log.")
    @click.option(
        "--actor",
        metavar="NAME",
        help="Person or program that acts, recorded in the audit log. Default: the user of this process.",
    )
    @functools.wraps(command)
    def decorated(*, reason: str | None, actor: str | None, **given: Any) -> Any:
        return command(reason=reason_text(reason) if reason else None, actor=_actor_of(actor), **given)

    return decorated


def _actor_of(given: str | None) -> str | None:
    if given is not None:
        return checked_name(given, "--actor")
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None  # a container whose user has no name
