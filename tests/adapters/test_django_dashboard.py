"""The dashboard in a Django site, as docs/guides/dashboard-deploy.md mounts it: users, permissions and sessions of Django, over real connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.test import override_settings

from tests.adapters import site
from tests.docs.pages import ROOT, Page
from tests.support.mounting import check_mounted_dashboard
from tests.support.serving import serving

site.set_up()

from django.contrib.auth.models import Permission, User  # noqa: E402

PAGE = Page(ROOT / "docs" / "guides" / "dashboard-deploy.md")
PASSWORD = "correct horse"


@pytest.fixture(scope="module", autouse=True)
def database(dsn: str) -> Iterator[None]:
    with site.on(dsn):
        with override_settings(MIGRATION_MODULES=site.AT_ONCE):
            call_command("migrate", verbosity=0, run_syncdb=True)
        yield


def make_user(name: str, *permissions: str, is_superuser: bool = False) -> None:
    user = User.objects.create_user(name, password=PASSWORD, is_staff=True, is_superuser=is_superuser)
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="gen_durable", codename__in=permissions)
    )


async def log_in(http: httpx.AsyncClient, name: str, address: str = "") -> None:
    """Log in at the admin, as a browser does."""
    url = f"{address}/admin/login/"
    form = await http.get(url)
    token = form.text.partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
    data = {"username": name, "password": PASSWORD, "csrfmiddlewaretoken": token, "next": "/orders/"}
    answer = await http.post(url, data=data)
    assert (answer.status_code, answer.headers["location"]) == (302, "/orders/")


async def test_permissions_of_django_are_roles(dsn: str) -> None:
    def make() -> None:
        make_user("rita", "view_instance")
        make_user("olga", "view_instance", "operate_instance")
        make_user("ann", "administer_instance")
        make_user("sue", is_superuser=True)
        make_user("eve", "view_outboxevent")

    await sync_to_async(make)()
    project: dict[str, Any] = {}
    exec(PAGE.files()["asgi.py"], project)
    async with serving(project["application"]) as address:

        async def log_in_here(http: httpx.AsyncClient, name: str) -> None:
            await log_in(http, name, address)

        await check_mounted_dashboard(
            f"{address}/durable", log_in_here, reader="rita", operator="olga", stranger="eve"
        )
        for name in ("ann", "sue"):
            async with httpx.AsyncClient() as http:
                await log_in(http, name, address)
                found = await http.get(f"{address}/durable/api/session")
                assert (found.json()["user"], found.json()["role"]) == (name, "admin")
                await sync_to_async(User.objects.filter(username=name).update)(is_active=False)
                assert (await http.get(f"{address}/durable/api/session")).status_code == 401
        async with httpx.AsyncClient() as http:
            assert 'data-url="/admin/login/?next={next}"' in (await http.get(f"{address}/durable/")).text
