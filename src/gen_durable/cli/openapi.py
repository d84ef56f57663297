"""`gen-durable openapi`: print the description of the JSON API of the dashboard."""

from __future__ import annotations

import json
from pathlib import Path

import click

from .extras import require_dashboard
from .failure import Failure

__all__ = ["openapi"]


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write. Default: standard output.",
)
def openapi(output: Path | None) -> None:
    """Print the OpenAPI 3.1 document of the JSON API that the dashboard serves, for code generators. Needs no database.

    A running dashboard serves the same document as /api/openapi.json.
    """
    require_dashboard("openapi")
    from ..dashboard.openapi import document

    text = json.dumps(document(), indent=2, ensure_ascii=False)
    if output is None:
        click.echo(text)
        return
    try:
        output.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise Failure(f"{output} cannot be written: {error.strerror or error}") from None
