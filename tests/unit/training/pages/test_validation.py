"""The validation report's drift, from findings."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from training.pages.validation import DRIFT_HEIGHT, DRIFT_WIDTH, MAX_DRIFT_CHARTS, render_report
from training.validation.drift.between_snapshots import Bar, ColumnDrift, SnapshotComparison
from training.validation.results import Findings

DAY = datetime(2026, 1, 2, tzinfo=UTC)


def drift(psi: float, *bars: Bar) -> ColumnDrift:
    return ColumnDrift(
        psi=psi,
        psi_of_chance=0.01,
        jensen_shannon=0.1,
        kolmogorov_smirnov=None,
        new_categories=0.125,
        missing_before=0.0,
        missing_now=0.5,
        bars=bars,
    )


def page_of(columns: dict[str, ColumnDrift]) -> str:
    findings = Findings(
        comparisons=[SnapshotComparison(words="the previous snapshot", as_of=datetime(2026, 1, 1, tzinfo=UTC), tables={"orders": columns})]
    )
    return render_report(findings, pipeline="p", as_of=DAY, window=(DAY, DAY), snapshot_digest="d").decode()


def test_values_of_the_data_are_escaped_in_charts() -> None:
    page = page_of({"<b>": drift(0.5, Bar(label="</title><script>alert(1)</script>", before=0.5, now=0.25))})
    assert "<script" not in page
    assert "&lt;b&gt;" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;: 50.00% before, 25.00% now" in page


def test_bars_are_as_high_as_their_shares_and_inside_the_chart() -> None:
    page = page_of({"x": drift(0.5, Bar(label="a", before=0.5, now=0.25), Bar(label="b", before=0.0, now=0.5))})
    boxes = re.findall(r'<rect class="(before|now)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', page)
    heights = [(kind, float(height)) for kind, _, _, _, height in boxes]
    assert heights == [("before", DRIFT_HEIGHT), ("now", DRIFT_HEIGHT / 2), ("before", 0.0), ("now", DRIFT_HEIGHT)]
    for _, x, y, width, height in boxes:
        assert float(x) + float(width) <= DRIFT_WIDTH
        assert float(y) + float(height) == DRIFT_HEIGHT


def test_the_columns_that_moved_most_come_first_and_only_some_have_a_chart() -> None:
    columns = {f"c{number:03}": drift(number / 100, Bar(label="a", before=1.0, now=1.0)) for number in range(MAX_DRIFT_CHARTS + 5)}
    page = page_of(columns)
    assert re.findall(r"<tr><td>(c\d+)</td>", page) == sorted(columns, reverse=True)
    assert page.count("<svg ") == MAX_DRIFT_CHARTS


def test_a_report_shows_its_instants_on_the_clock_of_the_pipeline() -> None:
    local = render_report(
        Findings(),
        pipeline="p",
        as_of=datetime(2026, 1, 2, 7, tzinfo=UTC),
        window=(datetime(2025, 12, 1, 5, tzinfo=UTC), datetime(2026, 1, 2, 5, tzinfo=UTC)),
        snapshot_digest="d",
        timezone="America/New_York",
    ).decode()
    assert "as of 2026-01-02 02:00 (America/New_York) · window 2025-12-01 00:00 (America/New_York) to 2026-01-02 00:00 " in local


def test_a_report_without_an_earlier_snapshot_has_no_drift() -> None:
    page = render_report(Findings(), pipeline="p", as_of=DAY, window=(DAY, DAY), snapshot_digest="d").decode()
    assert "Drift of" not in page
    assert "Siddiqi" not in page


def test_bounds_of_a_column_are_instants_of_the_pipelines_clock_or_what_the_rows_have() -> None:
    at = {"nulls": 0, "minimum": "2026-01-03 00:00:20.80006+00", "maximum": "2026-02-01 23:57:25+00"}
    price = {"nulls": 0, "minimum": 2.49, "maximum": 269.2, "mean": 38.4, "deviation": 30.7, "mean_shift": -0.00419, "psi": 4.48553e-05}
    findings = Findings(statistics={"orders": {"at": at, "name": {"nulls": 1, "minimum": "2026-01-03", "maximum": "zoë"}, "price": price}})
    page = render_report(findings, pipeline="p", as_of=DAY, window=(DAY, DAY), snapshot_digest="d", timezone="Europe/Berlin").decode()
    cells = {row[0]: row[1:] for row in (re.findall(r"<td[^>]*>(.*?)</td>", line) for line in page.splitlines() if "<td" in line) if row}
    assert cells["at"][1:3] == ["2026-01-03 01:00 (Europe/Berlin)", "2026-02-02 00:57 (Europe/Berlin)"]
    assert cells["name"][1:3] == ["2026-01-03", "zoë"]
    assert cells["price"] == ["0", "2.49", "269.2", "38.4", "30.7", "-0.0042", "0.0000"]


def test_a_bound_that_no_clock_of_the_zone_shows_is_shown_as_it_is() -> None:
    until = {"nulls": 0, "minimum": "0001-01-01 00:00:00+00", "maximum": "9999-12-31 23:59:59+00"}
    for zone, bound in (("Europe/Berlin", "maximum"), ("America/New_York", "minimum")):
        findings = Findings(statistics={"orders": {"until": until}})
        page = render_report(findings, pipeline="p", as_of=DAY, window=(DAY, DAY), snapshot_digest="d", timezone=zone).decode()
        assert f">{until[bound]}<" in page


def test_rows_outside_of_the_window_are_listed() -> None:
    line = "5 of 9 rows are before the window: 1970-01-01T00:00:00Z"
    page = render_report(Findings(), pipeline="p", as_of=DAY, window=(DAY, DAY), snapshot_digest="d", outside=[line]).decode()
    assert f"<li>{line}</li>" in page
