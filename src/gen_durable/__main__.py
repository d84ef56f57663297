"""`python -m gen_durable` runs the `gen-durable` command."""

from .cli import main

main()
