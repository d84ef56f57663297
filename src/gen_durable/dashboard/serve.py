"""Serve the dashboard with uvicorn."""

from __future__ import annotations

import asyncio
import errno
import secrets
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

import uvicorn

from ..async_client import AsyncClient
from ..config import DASHBOARD_PORT
from .access import User
from .app import Dashboard, create_app
from .guard import LOOPBACK

__all__ = ["Server", "bind", "bind_default", "local_dashboard", "serve", "url_of"]

# Seconds that running requests get to end.
_SHUTDOWN: Final = 2


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        OSError: the address is in use or does not exist.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen()
    except BaseException:
        opened.close()
        raise
    return opened


def bind_default() -> socket.socket:
    """Return a socket on the default port of loopback, or on any free port if that is in use."""
    try:
        return bind(LOOPBACK[0], DASHBOARD_PORT)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    return bind(LOOPBACK[0], 0)


def url_of(listening: socket.socket, one_time: str = "") -> str:
    """Return the address that a person opens."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - browsers open no wildcard
    shown_host = f"[{host}]" if ":" in host else host
    return f"http://{shown_host}:{port}/{'?token=' + one_time if one_time else ''}"


def local_dashboard(client: AsyncClient, *, environment: str = "") -> tuple[Dashboard, str]:
    """Return a dashboard for loopback, and the one-time token that logs in one browser as admin."""
    token = secrets.token_urlsafe(24)
    user = User("local", "admin")
    app = create_app(client, one_time={token: user}, allowed_hosts=LOOPBACK, environment=environment)
    return app, token


class Server(uvicorn.Server):
    """Serves an open dashboard until `stop`. Calls `on_ready` when it accepts connections."""

    def __init__(
        self,
        app: Dashboard,
        on_ready: Callable[[], None],
        root_path: str = "",
        proxies: Sequence[str] = (),
    ) -> None:
        """Configure it. `proxies`: addresses whose X-Forwarded-For and X-Forwarded-Proto are believed."""
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_SHUTDOWN,
                lifespan="off",
                ws="none",
                root_path=root_path,
                # By default uvicorn believes every client on loopback, which then evades the throttle.
                proxy_headers=bool(proxies),
                forwarded_allow_ips=list(proxies),
            )
        )
        self._dashboard = app
        self._on_ready = on_ready

    def stop(self) -> None:
        """Stop when running requests have ended; at once if called again."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and announce it."""
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End live connections, which do not end by themselves, then stop."""
        self._dashboard.end_streams()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals to the caller."""
        yield


async def serve(
    app: Dashboard,
    listening: socket.socket,
    on_ready: Callable[[], None],
    root_path: str = "",
    proxies: Sequence[str] = (),
) -> None:
    """Serve an open dashboard until SIGINT or SIGTERM."""
    server = Server(app, on_ready, root_path, proxies)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, server.stop)
    await server.serve(sockets=[listening])
