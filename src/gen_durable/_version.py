"""The version of this package, for the build and for whoever asks at run time."""

__all__ = ["VERSION"]

VERSION = "0.1.0.dev0"
