"""The version of this package. The build reads it from here."""

__all__ = ["VERSION"]

VERSION = "0.1.0.dev0"
