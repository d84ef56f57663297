"""The dashboard: a live picture of every machine, in a browser. Needs the extra `dash`.

    dashboard = create_app(client, authenticate=user_of_request)
    app.mount("/durable", dashboard)

`gen-durable dash` serves it alone. `docs/guides/dashboard-deploy.md` describes roles, proxies and security.
"""

from __future__ import annotations

try:
    import starlette as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        "gen_durable.dashboard needs Starlette: pip install 'gen_durable[dash]'", name="starlette"
    ) from error

from .access import Authenticate, Role, User
from .app import Dashboard, create_app
from .redaction import Redact, hide_secrets

__all__ = ["Authenticate", "Dashboard", "Redact", "Role", "User", "create_app", "hide_secrets"]
