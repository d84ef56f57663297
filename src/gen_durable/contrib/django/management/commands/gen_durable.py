"""`manage.py gen_durable …`: the command line of gen_durable for the database of the project."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from .....config import export_settings
from ...conf import database_dsn, read

__all__ = ["Command"]


class Command(BaseCommand):
    """Run `gen-durable` with DSN and settings from `DATABASES` and `GEN_DURABLE`. Options take precedence."""

    help = "Run gen-durable on the database of this project: worker, doctor, ls, show, db status …"
    # System checks, for example of templates, must not keep a worker from starting.
    requires_system_checks = ()

    def add_arguments(self, parser: Any) -> None:
        """Declare the arguments for `manage.py help` and `call_command`."""
        parser.add_argument(
            "arguments", nargs=argparse.REMAINDER, help="arguments of gen-durable; see --help"
        )

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass all arguments after the command name to gen-durable, options included."""
        root, defaults = _root()
        root.main(argv[2:], prog_name=f"{Path(argv[0]).name} {argv[1]}", default_map=defaults)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command for `call_command`."""
        import click

        root, defaults = _root()
        try:
            root.main(
                options["arguments"], prog_name="gen-durable", default_map=defaults, standalone_mode=False
            )
        except click.ClickException as error:
            raise CommandError(error.format_message(), returncode=error.exit_code) from error


def _root() -> tuple[Any, dict[str, Any]]:
    try:
        from .....cli.root import root
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        raise CommandError(f"this command needs {error.name}: pip install 'gen_durable[cli]'") from None
    conf = read()
    export_settings(database_dsn(), f"DATABASES[{conf.database!r}] of the Django project", conf.given)
    target = {} if conf.worker is None else {"target": conf.worker}
    return root, {"worker": target, "dev": target}
