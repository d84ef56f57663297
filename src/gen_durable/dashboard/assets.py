"""The files of the front end: read once, compressed once, named by their content so that browsers keep them."""

from __future__ import annotations

import gzip
import hashlib
import html
from collections.abc import Iterable
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from .compact import compact

__all__ = ["asset", "page", "version"]

_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
}
_COMPRESSED: Final = (".js", ".css", ".svg")
_FOREVER: Final = "public, max-age=31536000, immutable"


class _File(NamedTuple):
    kind: str
    content: bytes
    compressed: bytes | None


@cache
def _files() -> dict[str, _File]:
    return {path: _read(path, found) for path, found in _walk(resources.files(__package__) / "static", "")}


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found = []
    for one in sorted(folder.iterdir(), key=lambda each: each.name):
        path = f"{prefix}{one.name}"
        if one.is_dir():
            found += _walk(one, f"{path}/")
        elif _suffix(path) in _TYPES:
            found.append((path, one))
    return found


def _suffix(path: str) -> str:
    return path[path.rfind(".") :]


def _read(path: str, found: Traversable) -> _File:
    content = found.read_bytes()
    if path.startswith("js/") and path.endswith(".js"):
        content = compact(content.decode()).encode()
    is_text = _suffix(path) in _COMPRESSED
    return _File(_TYPES[_suffix(path)], content, gzip.compress(content, 9, mtime=0) if is_text else None)


@cache
def version() -> str:
    """A word for the contents of all files, in their URLs."""
    digest = hashlib.sha256()
    for path, file in _files().items():
        digest.update(path.encode() + b"\0" + file.content)
    return digest.hexdigest()[:12]


@cache
def _template() -> str:
    return (resources.files(__package__) / "static" / "index.html").read_text()


def page(root: str, ways: Iterable[str], hint: str, url: str) -> Response:
    """Return the page of the front end. It is the same for every path and user.

    Args:
        root: the path at which the dashboard is mounted.
        ways: how people log in: `token`, `password`.
        hint: what the login page says.
        url: the login page of the host application.
    """
    values = {
        "assets": f"{root}/static/{version()}",
        "root": root,
        "ways": " ".join(ways),
        "hint": hint,
        "login": url,
    }
    content = _template()
    for name, value in values.items():
        content = content.replace(f"{{{name}}}", html.escape(value))
    return Response(content, media_type="text/html", headers={"cache-control": "no-cache"})


def asset(path: str, of_version: str, request: Request) -> Response | None:
    """Return a file of the front end; `None` if there is none of that name."""
    file = _files().get(path)
    if file is None:
        return None
    # Behind a proxy, a page may ask a process that has other files under this name.
    is_ours = of_version == version()
    headers = {"cache-control": _FOREVER if is_ours else "no-store", "vary": "accept-encoding"}
    if file.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            file.compressed, headers={**headers, "content-encoding": "gzip"}, media_type=file.kind
        )
    return Response(file.content, headers=headers, media_type=file.kind)
