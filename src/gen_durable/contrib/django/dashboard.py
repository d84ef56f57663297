"""The users of a Django project in the dashboard.

    from gen_durable.contrib.django import database_dsn
    from gen_durable.contrib.django.dashboard import authenticate

    dashboard = create_app(
        AsyncClient(database_dsn()), authenticate=authenticate, login_url="/admin/login/?next={next}"
    )

Superusers have the role `admin`. Others need a permission: `gen_durable.view_instance` for the role `read`,
`gen_durable.operate_instance` for `operate`, `gen_durable.administer_instance` for `admin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from ...dashboard import Role, User
from .client import fresh_connections

__all__ = ["authenticate"]

_PERMISSIONS: Final[tuple[tuple[str, Role], ...]] = (
    ("gen_durable.administer_instance", "admin"),
    ("gen_durable.operate_instance", "operate"),
    ("gen_durable.view_instance", "read"),
)


async def authenticate(request: Any) -> User | None:
    """Return the user of the Django session of a request, if a permission gives a role."""
    return await sync_to_async(_user)(request.cookies)


def _user(cookies: Mapping[str, str]) -> User | None:
    key = cookies.get(settings.SESSION_COOKIE_NAME)
    if key is None:
        return None
    with fresh_connections():
        request = HttpRequest()
        request.session = import_module(settings.SESSION_ENGINE).SessionStore(key)
        found = get_user(request)
        for permission, role in _PERMISSIONS:
            if found.has_perm(permission):
                return User(found.get_username(), role)
        return None
