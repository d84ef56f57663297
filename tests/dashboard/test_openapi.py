"""The OpenAPI document describes every endpoint."""

from __future__ import annotations

import httpx
import pytest

from gen_durable.dashboard.endpoints import endpoints
from gen_durable.dashboard.openapi import document


def test_document_has_every_endpoint_once() -> None:
    found = document()
    assert found["openapi"].startswith("3.1")
    operations = [
        (method.upper(), path) for path, by_method in found["paths"].items() for method in by_method
    ]
    of_the_application = {
        ("POST", "/api/login"),
        ("POST", "/api/logout"),
        ("GET", "/api/events"),
        ("GET", "/api/openapi.json"),
    }
    known = {(method, f"/api{path}") for method, path in endpoints} | of_the_application
    assert sorted(operations) == sorted(known)
    names = [one["operationId"] for by_method in found["paths"].values() for one in by_method.values()]
    assert len(names) == len(set(names))


def test_document_is_valid_openapi() -> None:
    from openapi_spec_validator import OpenAPIV31SpecValidator  # takes a second, in each test process

    assert [error.message for error in OpenAPIV31SpecValidator(document()).iter_errors()] == []
    wrong = document()
    wrong["paths"]["/api/queues"]["get"]["summary"] = 1
    assert list(OpenAPIV31SpecValidator(wrong).iter_errors())


async def test_document_is_served(http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/openapi.json")).json()["info"]["title"]


@pytest.mark.parametrize("path", ["/events", "/login", "/logout", "/openapi.json"])
def test_no_endpoint_hides_a_route_of_the_application(path: str) -> None:
    assert not [method for method, known in endpoints if known == path]
