"""The benchmark of the dashboard leaves out no endpoint, topic or page."""

from __future__ import annotations

from bench.dashboard.requests import gets, topics_with_names
from gen_durable.dashboard.endpoints import endpoints
from gen_durable.dashboard.live import topics
from tests.support.dashboard_pages import PAGES


def test_every_endpoint_that_reads_is_requested() -> None:
    asked = {request.path for request in gets()}
    assert asked == {path for method, path in endpoints if method == "GET"}


def test_every_topic_is_polled() -> None:
    assert {name.partition(":")[0] for name in topics_with_names()} == set(topics)


def test_every_page_of_the_shell_is_opened() -> None:
    assert all(page.exists for page in PAGES), PAGES
    assert len(PAGES) >= 13
