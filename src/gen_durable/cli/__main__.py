"""`python -m gen_durable.cli` is `gen-durable`."""

from . import main

main()
