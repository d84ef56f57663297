"""`manage.py gen_durable …`: the command line of gen_durable, on the database of the project."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from .....config import export_settings
from ...conf import database_dsn, read

__all__ = ["Command"]


class Command(BaseCommand):
    """`gen-durable`, with `DATABASES` and `GEN_DURABLE` for its DSN and its settings; options still win."""

    help = "Run gen-durable on the database of this project: worker, doctor, ls, show, db status …"
    # A worker that would not start because of a template that it never renders helps nobody.
    requires_system_checks = ()

    def add_arguments(self, parser: Any) -> None:
        """For `manage.py help` and `call_command`."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="as of gen-durable; try: --help")

    def run_from_argv(self, argv: list[str]) -> None:
        """Everything behind the name of the command is gen-durable's, options too."""
        root, defaults = _root()
        root.main(argv[2:], prog_name=f"{Path(argv[0]).name} {argv[1]}", default_map=defaults)

    def handle(self, *args: Any, **options: Any) -> None:
        """What `call_command` does."""
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
    return root, {} if conf.worker is None else {"worker": {"target": conf.worker}}
