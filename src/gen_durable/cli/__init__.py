"""The command line, `gen-durable`. Its dependencies are the extra `cli`, so no other part of the package imports it."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit."""
    try:
        from .root import root
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print(f"gen-durable needs {error.name}. Run: pip install 'gen_durable[cli]'", file=sys.stderr)
        sys.exit(2)
    root(prog_name="gen-durable")
