"""Benchmarks: what the engine does per second, next to a bare loop of its own statements on the same server."""
