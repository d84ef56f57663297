"""What holds for every endpoint of the API: its answers are those that the OpenAPI document describes, and roles."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, Final

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gen_durable import AsyncClient
from gen_durable.dashboard import Dashboard, create_app
from gen_durable.dashboard.access import Role, allows
from gen_durable.dashboard.endpoints import endpoints
from gen_durable.dashboard.openapi import document
from gen_durable.testing._databases import Databases
from tests.dashboard.conftest import TOKEN_OF, TOKENS, http_as, served
from tests.dashboard.shop import shop

# The stream of events does not end, and a logout has nothing that could be invalid.
API: Final = schemathesis.openapi.from_dict(document()).exclude(path=["/api/events", "/api/logout"])
EXAMPLES: Final = 8
ANSWERS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def site_of_shop(durable_databases: Databases) -> Iterator[str]:
    """The address of a dashboard with data, which a thread serves: these tests are not async."""
    opened, closing = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve(dsn: str) -> None:
        async with AsyncClient(dsn) as client, shop(dsn, client):
            app = create_app(client, tokens=TOKENS)
            async with app.opened(), served(app) as address:
                found.append(address)
                opened.set()
                await asyncio.to_thread(closing.wait)

    with durable_databases.fresh() as dsn:
        thread = threading.Thread(target=lambda: asyncio.run(serve(dsn)))
        thread.start()
        assert opened.wait(60)
        yield found[0]
        closing.set()
        thread.join()


# The thread of the server uses `random`.
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
def test_answers_are_those_of_the_document(
    mode: schemathesis.GenerationMode, site_of_shop: str, subtests: pytest.Subtests
) -> None:
    headers = {"authorization": f"Bearer {TOKEN_OF['admin']}"}
    # Not `API.parametrize`: its tests have one name, of which pytest-xdist runs one.
    for found in API.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()

        @hypothesis.given(operation.as_strategy(generation_mode=mode))
        @hypothesis.settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None)
        def check(case: schemathesis.Case[Any]) -> None:
            case.validate_response(case.call(base_url=site_of_shop, headers=headers), checks=ANSWERS)

        with subtests.test(operation.label):
            check()


@pytest.mark.parametrize("role", [None, "read", "operate", "admin"])
async def test_endpoints_refuse_other_roles(dashboard: Dashboard, role: Role | None) -> None:
    async with http_as(dashboard, role) as http:
        for (method, path), one in endpoints.items():
            url = "/api" + path.format_map(dict.fromkeys(one.in_path, "1"))
            answer = await http.request(method, url, json={} if method == "POST" else None)
            refused = 401 if role is None else 403 if not allows(role, one.role) else None
            expected = [refused] if refused else [200, 404, 409, 422]
            assert answer.status_code in expected, (method, path, answer.text)
            assert method == "GET" or one.role != "read", path
