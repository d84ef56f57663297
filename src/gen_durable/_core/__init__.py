"""The pure part of the engine: no event loop, no driver, no clock."""
