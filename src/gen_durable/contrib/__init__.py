"""Adapters for what others have made. Each needs the extra of its name."""
