"""The OpenAPI 3.1 description of the JSON API."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from .. import __version__
from . import api as api
from .endpoints import Endpoint, endpoints
from .idempotency import KEY_PATTERN
from .problems import Problem

__all__ = ["document"]

_REF: Final = "#/components/schemas/{name}"
_DURATION: Final = r"^[+-]?P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?$"
# Problems of all endpoints, of those with a parameter in the path, and of those that change something.
_PROBLEMS: Final = {
    401: "There is no valid session, token or password.",
    403: "The role does not allow it, the CSRF token is missing, or another site has sent the request.",
    421: "The host is not allowed.",
    422: "The request is not valid.",
    429: "There were too many wrong passwords.",
    500: "The dashboard failed; the log of its process has the error.",
    503: "The database does not answer.",
    504: "The query took too long.",
}
_OF_PATH: Final = {404: "There is no such object."}
_OF_CHANGE: Final = {
    404: "There is no such object.",
    408: "The body did not arrive in time.",
    409: "The change was refused.",
    413: "The body is too large.",
    415: "The body is not JSON.",
}


def document() -> dict[str, Any]:
    """Return the document, in the order of the paths."""
    found = sorted(endpoints.values(), key=lambda one: (one.path, one.method))
    types: list[Any] = [Problem]
    for one in found:
        types.append(one.answer)
        types += [one.body] if one.body is not None else []
        types += [*one.in_path.values(), *(kind for kind, _ in one.in_query.values())]
    schemas, components = _with_fractions(msgspec.json.schema_components(types, ref_template=_REF))
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in found:
        paths.setdefault(f"/api{one.path}", {})[one.method.lower()] = _operation(one, by_type)
    paths |= _of_the_application()
    paths = dict(sorted(paths.items()))
    made = {
        "openapi": "3.1.0",
        "info": {
            "title": "gen_durable dashboard",
            "version": __version__,
            "description": "Read and change instances, queues, limits, schedules and events. Times are ISO 8601 in "
            "UTC, durations ISO 8601. Errors are RFC 9457 problems.",
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"basic": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                str(status): {
                    "description": text,
                    "content": {"application/problem+json": {"schema": by_type[repr(Problem)]}},
                }
                for status, text in sorted({**_PROBLEMS, **_OF_CHANGE}.items())
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "gen_durable_session",
                    "description": "The name of the cookie ends with the port and the path of the dashboard.",
                },
            },
        },
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))  # defaults are tuples, for example
    return plain


def _of_the_application() -> dict[str, dict[str, Any]]:
    """Describe the routes of `app.py`: login, live topics, and this document."""

    def answers(*statuses: int, **good: Any) -> dict[str, Any]:
        return {
            **{status.removeprefix("_"): answer for status, answer in good.items()},
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in statuses},
        }

    login = {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: {"type": "string", "default": ""} for name in ("token", "name", "password")},
    }
    listed = {"name": "topics", "in": "query", "required": True, "schema": {"type": "string"}}
    return {
        "/api/login": {
            "post": {
                "operationId": "log_in",
                "summary": "Log in with a token, or a name and a password; sets the cookie of the session",
                "security": [],
                "requestBody": {"required": True, "content": {"application/json": {"schema": login}}},
                "responses": answers(
                    401, 403, 408, 413, 415, 421, 422, 429, _204={"description": "The cookie is set."}
                ),
            }
        },
        "/api/logout": {
            "post": {
                "operationId": "log_out",
                "summary": "End the session of the cookie",
                "security": [],
                "responses": answers(403, 421, _204={"description": "The session has ended."}),
            }
        },
        "/api/events": {
            "get": {
                "operationId": "live_events",
                "summary": "Live topics as server-sent events",
                "description": "Role: read. `topics` are separated by commas. The answer does not end by itself.",
                "parameters": [listed],
                "responses": answers(
                    401,
                    421,
                    422,
                    429,
                    503,
                    _200={
                        "description": "The events.",
                        "content": {"text/event-stream": {"schema": {"type": "string"}}},
                    },
                ),
            }
        },
        "/api/openapi.json": {
            "get": {
                "operationId": "openapi_document",
                "summary": "This document",
                "description": "Role: read.",
                "responses": answers(
                    401,
                    421,
                    429,
                    _200={
                        "description": "The document.",
                        "content": {"application/json": {"schema": {"type": "object"}}},
                    },
                ),
            }
        },
    }


def _with_fractions(schema: Any) -> Any:
    """Describe durations by a pattern: the format `duration` of JSON Schema allows no fractions of a second."""
    if isinstance(schema, dict):
        if schema.get("format") == "duration":
            return {**{key: value for key, value in schema.items() if key != "format"}, "pattern": _DURATION}
        return {key: _with_fractions(value) for key, value in schema.items()}
    if isinstance(schema, list | tuple):
        return [_with_fractions(value) for value in schema]
    return schema


def _operation(one: Endpoint, schemas: Mapping[str, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schemas[repr(kind)]}
        for name, kind in one.in_path.items()
    ]
    for name, (kind, default) in one.in_query.items():
        parameters.append(
            {
                "name": name,
                "in": "query",
                "required": default is inspect.Parameter.empty,
                "schema": schemas[repr(kind)],
            }
        )
    if one.method == "POST":
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "pattern": KEY_PATTERN},
                "description": "A request with the same key, path and body gets the answer of the first one for a day, "
                "and changes nothing. Keys of other users are other keys.",
            }
        )
        parameters.append(
            {
                "name": "X-CSRF-Token",
                "in": "header",
                "required": False,
                "schema": {"type": "string"},
                "description": "Required unless the request has a bearer token. /api/session returns it.",
            }
        )
    statuses = {*_PROBLEMS, *(_OF_PATH if one.in_path else ()), *(_OF_CHANGE if one.method == "POST" else ())}
    operation: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "description": f"Role: {one.role}.",
        "parameters": parameters,
        "responses": {
            "200": {
                "description": "The answer.",
                "content": {"application/json": {"schema": schemas[repr(one.answer)]}},
            },
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)},
        },
    }
    if one.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[repr(one.body)]}},
        }
    return operation
