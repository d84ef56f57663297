"""The results of the comparison: medians, targets, and the page that is generated from them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.peers.charts import charts
from bench.peers.page import RESULTS, better, files, page
from bench.peers.report import terminal
from bench.peers.results import TARGETS, Results, Target


@pytest.fixture
def results() -> Results:
    found = Results(
        about={
            "processor": "P",
            "cores": 2,
            "memory_gb": 4,
            "kernel": "6",
            "python": "3",
            "postgresql": "18",
            "settings": {"fsync": "on"},
            "rounds": 3,
            "rows": 10,
            "load": 0.1,
            "commit": "abc",
            "date": "2026-01-01",
        },
        systems={
            name: {"title": name, "version": "1", "settings": "s", "is_ours": name == "gen_durable"}
            for name in ("gen_durable", "graphile_worker", "dbos")
        },
        skipped={"absurd": "no network"},
    )
    for number, ours, theirs in ((1, 100.0, 50.0), (2, 300.0, 100.0), (3, 110.0, 100.0)):
        found.add("noop", "gen_durable", number, _figures(ours))
        found.add("noop", "graphile_worker", number, _figures(theirs) | {"server_us": 1.0})
        found.add("noop", "dbos", number, "it failed")
        found.add("chain", "graphile_worker", number, None)
    return found


def _figures(rate: float) -> dict[str, float]:
    return {"per_second": rate, "worker_us": 3.0, "server_us": 4.0, "total_us": 7.0}


def test_ratio_is_the_median_of_the_ratios_of_the_rounds(results: Results) -> None:
    assert results.median("noop", "gen_durable")["per_second"] == 110
    assert results.ratio("per_second", ("noop", "gen_durable"), ("noop", "graphile_worker")) == 2
    assert results.ratio("per_second", ("noop", "gen_durable"), ("noop", "dbos")) is None


def test_failed_and_unsupported_measurements_have_no_figures(results: Results) -> None:
    assert results.median("noop", "dbos") == {}
    assert results.failure("noop", "dbos") == "it failed"
    assert results.failure("chain", "graphile_worker") is None


@pytest.mark.parametrize(
    ("is_minimum", "bound", "word"), [(True, 2, "met"), (True, 3, "missed"), (False, 1, "missed")]
)
def test_target_is_met_or_missed(results: Results, is_minimum: bool, bound: float, word: str) -> None:
    assert Target("t", is_minimum, bound, lambda _: 2.0).verdict(results).word == word


def test_target_without_figures_is_not_measured() -> None:
    assert {target.verdict(Results()).word for target in TARGETS} == {"not measured"}


def test_advantages_of_other_systems_are_listed(results: Results) -> None:
    assert list(better(results)) == ["no-op jobs: graphile_worker: 1 µs in PostgreSQL, gen_durable 4"]


def test_tables_name_failed_and_skipped_systems(results: Results) -> None:
    for text in (terminal(results), page(results)):
        assert "failed" in text
        assert "no network" in text


def test_page_names_the_range_and_outliers(results: Results) -> None:
    assert "| gen_durable | 110 | 100 to 300 |" in page(results)
    assert "is an outlier" not in page(results)
    results.add("noop", "graphile_worker", 1, _figures(49.0))
    assert "graphile_worker: one round is an outlier, with 49 per second." in page(results)


def test_deviations_leave_out_rows_with_an_outlier(results: Results) -> None:
    assert results.deviations("per_second") == [190 / 110, 0.5]
    results.add("noop", "graphile_worker", 1, _figures(49.0))
    assert results.deviations("per_second") == [190 / 110]
    assert Results().deviations("per_second") == [0.0]


def test_bars_of_the_cost_chart_add_up_to_the_sum_of_the_table(results: Results) -> None:
    results.add("noop", "gen_durable", 1, _figures(100.0) | {"total_us": 9.0})
    results.add("noop", "gen_durable", 2, _figures(100.0) | {"total_us": 9.0})
    assert ">9.0</text>" in dict(charts(results))["cost-light.svg"]


def test_results_survive_a_file(results: Results, tmp_path: Path) -> None:
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results


def test_charts_are_xml_in_two_variants(results: Results) -> None:
    drawn = dict(charts(results))
    assert {"jobs-light.svg", "jobs-dark.svg"} <= set(drawn)
    for text in drawn.values():
        ElementTree.fromstring(text)


def test_published_page_and_charts_come_from_the_published_results() -> None:
    for path, text in files(Results.read(RESULTS)):
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run ./run bench --peers --render"
