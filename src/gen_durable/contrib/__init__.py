"""Adapters for other libraries. Each needs its extra."""
