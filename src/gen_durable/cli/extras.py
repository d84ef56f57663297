"""Commands that need the dashboard, whose dependencies are an extra."""

from __future__ import annotations

from importlib import import_module

from .failure import Failure

__all__ = ["require_dashboard"]


def require_dashboard(command: str) -> None:
    """Fail with advice if Starlette or uvicorn is missing."""
    try:
        import_module("gen_durable.dashboard.serve")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise Failure(
            f"{command} needs Starlette and uvicorn. Run: pip install 'gen_durable[dash]'"
        ) from None
