"""The evaluation's page: what it says, what it leaves out and why, and that it is nobody's way in."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.unit.training.pages import report_example
from tests.unit.training.pages.report_example import compared, page, rules
from tests.unit.training.registry.good_evaluation import BLOCKS as BY_TIME
from tests.unit.training.registry.good_evaluation import CHAMPION
from training.format import brief, moment, number, percent, signed
from training.pages.evaluation_view import MAX_FEATURES, MAX_SLICES, mlflow_facts

VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}
BLOCKS = {"td", "th", "dd", "li", "small", "figcaption", "p", "h2", "h3"}
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}"


class Page(HTMLParser):
    """The page's elements, and the text that a reader sees; refuses elements that are not closed in their order."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self._text: list[str] = []
        self.feed(content.decode())
        self.close()
        assert self._open == []

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self._text))

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.elements if name == tag and attributes.items() <= found.items()]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag in BLOCKS:
            self._text.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self._text.append(data)


def rendered(**changes: Any) -> Page:
    return Page(report_example.rendered(page(600, **changes)))


def evaluation(**changes: Any) -> dict[str, Any]:
    return {**page(600)["evaluation"], **changes}


def decided(outcome: str, **reason: Any) -> dict[str, Any]:
    told = {"gate": "improvement", "passed": True, "severity": "fail", "words": "auc better by +0.02, required > 0", **reason}
    return {"outcome": outcome, "reasons": [told]}


def test_the_decision_comes_first_with_every_gate_and_its_numbers() -> None:
    found = rendered()
    assert found.text.index("Needs approval") < found.text.index("fairness: origin: calibration gap 0.041") < found.text.index("decides")
    for reason in page(600)["decision"]["reasons"]:
        assert f"{reason['gate']}: {reason['words']}" in found.text
    # What stands in the way is read before what does not.
    assert found.text.index("asks a person") < found.text.index("warning overlap") < found.text.index("passed finite")


@pytest.mark.parametrize(
    ("outcome", "words", "look"),
    [("accepted", "✓ Accepted", "good"), ("rejected", "✗ Rejected", "bad"), ("needs_approval", "? Needs approval", "ask")],
)
def test_each_outcome_has_its_words_and_its_colour(outcome: str, words: str, look: str) -> None:
    found = rendered(decision=decided(outcome))
    assert words in found.text
    assert found.all("section", id="decision")[0]["class"] == f"card {look}"


@pytest.mark.parametrize(
    ("severity", "words"), [("fail", "✗ failed improvement"), ("warn", "! warning improvement"), ("approve", "? asks a person improvement")]
)
def test_a_gate_that_is_not_passed_says_what_it_does(severity: str, words: str) -> None:
    assert words in rendered(decision=decided("rejected", passed=False, severity=severity)).text


def test_a_spec_that_asks_for_a_person_is_no_passed_gate() -> None:
    found = rendered(
        decision=decided("needs_approval", gate="approval", passed=False, severity="approve", words="the spec asks for a person")
    )
    assert "? asks a person approval: the spec asks for a person" in found.text


def test_candidate_is_shown_next_to_the_champion_with_interval_and_direction() -> None:
    comparison = compared(0.0123, 0.0051, 0.0204, probability=0.998)
    metrics, old = {"auc": 0.75, "log_loss": 0.4}, {"auc": 0.7377, "log_loss": 0.38}
    found = rendered(evaluation=evaluation(comparison=comparison, metrics=metrics, champion_metrics=old)).text
    assert "auc 0.75000 against the champion's 0.73770 (version 6): better" in found
    assert "gain +0.01230, 95 % interval [+0.00510, +0.02040]; better in 99.8 % of resamples of 600 units" in found
    assert "auc decides higher is better 0.75000 0.73770 +0.01230 better at least 0.6" in found
    assert "log_loss lower is better 0.40000 0.38000 +0.02000 worse at most 0.6" in found


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.0, 0.0, "no difference"),
        (-0.02, -0.001, "worse"),
        (-0.001, 0.02, "better, but not significantly: zero lies in the interval"),
        (0.001, 0.02, "better"),
    ],
)
def test_a_difference_is_sure_only_where_the_interval_leaves_out_zero(low: float, high: float, words: str) -> None:
    comparison = compared((low + high) / 2, low, high, probability=0.5)
    found = rendered(evaluation=evaluation(comparison=comparison))
    assert f"(version 6): {words} " in found.text
    zero = found.all("span", **{"class": "zero"})[0]["style"]
    assert zero is not None
    assert 0 < float(zero.removeprefix("left:").removesuffix("%")) < 100


def test_the_canary_has_columns_of_its_own_and_an_interval() -> None:
    canary = {**CHAMPION, "version": "5"}
    gain = compared(-0.01, -0.02, -0.001, probability=0.01)
    found = rendered(evaluation=evaluation(canary=canary, canary_metrics={"auc": 0.9}, canary_comparison=gain)).text
    assert "against the canary's 0.90000 (version 5): worse" in found
    assert "canary difference required" in found


def test_without_a_champion_the_page_says_so_and_shows_no_column_for_it() -> None:
    first = evaluation(champion=None, champion_metrics={}, comparison=None, baseline="no champion")
    found = rendered(evaluation=first).text
    assert "not compared: there is no champion yet" in found
    assert "metric candidate required" in found
    late = rendered(evaluation={**first, "baseline": "its train rows end after the test rows begin"}).text
    assert "not compared: the champion is not a baseline: its train rows end after the test rows begin" in late


def test_the_worst_slice_is_marked_first_and_small_ones_come_last_and_grey() -> None:
    slices = [
        {"columns": {"carrier": "UA"}, "support": 900, "is_small": False, "candidate": 0.80, "champion": 0.79},
        {"columns": {"carrier": "HA"}, "support": 9, "is_small": True, "candidate": 0.10, "champion": "nan"},
        {"columns": {"carrier": "OO", "origin": "JFK"}, "support": 120, "is_small": False, "candidate": 0.61, "champion": 0.70},
        {"columns": {"carrier": "AA"}, "support": 400, "is_small": False, "candidate": "nan", "champion": None},
    ]
    found = rendered(evaluation=evaluation(slices=slices, worst_slice=2, slice_gap=0.19))
    values = re.findall(r"OO · JFK worst carrier × origin|UA carrier|AA carrier|HA small carrier", found.text)
    assert values == ["OO · JFK worst carrier × origin", "UA carrier", "AA carrier", "HA small carrier"]
    assert [row["class"] for row in found.all("tr") if row.get("class") in ("worst", "small")] == ["worst", "small"]
    assert "120 0.61000 0.70000 -0.09000 worse, too much" in found.text
    assert "Best and worst are 0.19 apart" in found.text


def test_slices_and_groups_without_a_class_say_why_they_are_not_judged_and_come_last() -> None:
    why = "one class only"
    slices = [
        {"columns": {"c": "LU"}, "support": 240, "is_small": False, "candidate": None, "champion": None, "why_none": why},
        {"columns": {"c": "DE"}, "support": 2760, "is_small": False, "candidate": 0.8, "champion": 0.7},
    ]
    value = {"value": "LU", "support": 240, "is_small": False, "true_positive_rate": None, "calibration_error": 0.1, "num_positives": 0}
    fairness = {"c": {"equal_opportunity_gap": None, "calibration_gap": None, "values": [value]}}
    found = rendered(evaluation=evaluation(slices=slices, worst_slice=1, num_rows=3000, fairness=fairness)).text
    assert "The 1 whose labels allow no auc are grey too" in found
    assert found.index("DE worst c") < found.index("LU not judged: one class only, 8.0 % of the rows c 240 – –")
    assert "LU no positive label 240" in found


def test_where_lower_is_better_the_worst_slice_is_the_largest() -> None:
    slices = [
        {"columns": {"c": name}, "support": 900, "is_small": False, "candidate": x, "champion": 0.5} for name, x in (("p", 0.3), ("q", 0.7))
    ]
    found = rendered(
        evaluation=evaluation(slices=slices, worst_slice=1, metrics={"log_loss": 0.5}), rules=rules(primary="log_loss", minimum={})
    ).text
    assert found.index("q worst c 900 0.70000 0.50000 +0.20000 worse") < found.index("p c 900 0.30000 0.50000 -0.20000 better")


def test_bias_is_better_the_closer_it_is_to_0() -> None:
    values = {"metrics": {"rmse": 2.0, "bias": -0.5}, "champion_metrics": {"rmse": 2.0, "bias": 1.0}}
    found = rendered(evaluation=evaluation(**values), rules=rules(task="regression", primary="rmse", minimum={})).text
    assert "bias closest to 0 is best -0.50000 1.00000 -1.50000 better" in found


def test_more_slices_and_features_than_anybody_reads_are_counted_and_left_out() -> None:
    slices = [
        {"columns": {"city": f"c{n}"}, "support": 900, "is_small": False, "candidate": n / 5000, "champion": None}
        for n in range(MAX_SLICES + 25)
    ]
    importance = {f"feature{n}": 1 / (1 + n) for n in range(MAX_FEATURES + 3)}
    content = report_example.rendered(page(600, evaluation=evaluation(slices=slices, worst_slice=0, importance=importance)))
    found = Page(content)
    assert f"The first {MAX_SLICES} of {MAX_SLICES + 25}; metrics.json of the evaluation has all." in found.text
    assert found.text.count(" city ") == MAX_SLICES
    assert "And 3 less important ones" in found.text
    assert len(content) < 300_000


def test_fairness_latency_and_checks_show_numbers_limits_and_verdicts() -> None:
    found = rendered().text
    assert "equal-opportunity gap 0.13 (limit 0.2, kept), calibration gap 0.041 (limit 0.03, not kept)" in found
    assert "1 1.42 ms 2.1 ms (limit 20 ms, kept) 3.04 ms (limit 30 ms, kept) 690.2" in found
    assert "leakage ✓ passed the strongest feature alone is scheduled_departure_minute: it ranks the labels with 0.641 below 0.98" in found
    assert "overlap ! warning 87.3 % of 2,210 test entities (tailnum) were trained on too no limit" in found


def test_a_limit_on_what_is_no_number_is_not_kept() -> None:
    latency = {"1": {"p50_ms": 1.0, "p95_ms": "nan", "p99_ms": "nan", "rows_per_second": 10.0, "waited_share": 0.0}}
    found = rendered(evaluation=evaluation(latency=latency)).text
    assert "1 1 ms not a number (limit 20 ms, not kept) not a number (limit 30 ms, not kept)" in found


def test_bars_are_as_long_as_their_share_of_the_longest_and_never_negative() -> None:
    found = rendered(evaluation=evaluation(importance={"a": 0.4, "b": 0.1, "c": -0.02, "d": "nan"}))
    widths = [span["style"] for span in found.all("span") if (span.get("style") or "").startswith("width")]
    assert widths == ["width:100.0%", "width:25.0%", "width:0.0%", "width:0.0%"]


def test_every_missing_part_is_left_out_with_a_line_that_says_why() -> None:
    nothing = {"metrics": {"auc": "nan"}, "champion_metrics": {}, "baseline": "no champion", "num_rows": 12, "version": None}
    absent = {"decision": None, "plots": {}, "history": None, "facts": {}}
    found = Page(
        report_example.rendered(
            {"evaluation": nothing, "pipeline": "p", "as_of": "never", "rules": rules(slices=[], sensitive=[]), **absent}
        )
    )
    for line in (
        "The gates have not judged this evaluation.",
        "auc not a number, not compared: there is no champion yet",
        "The spec declares no columns to slice by (evaluate.slices).",
        "Fairness is not measured: the spec declares no sensitive columns (evaluate.sensitive).",
        "Leakage, overlap, drift and constant predictions were not measured.",
        "No curves of the predictions",
        "No loss curve",
        "No importance",
        "The latency was not measured.",
        "No facts were recorded.",
    ):
        assert line in found.text, line
    assert len(found.all("table")) == 1  # the metrics
    minimal = report_example.rendered({"evaluation": nothing, "pipeline": "p", "as_of": "never", "rules": rules(slices=[], sensitive=[])})
    assert Page(minimal).text == found.text


def test_what_is_not_finite_is_said_in_words_and_never_drawn() -> None:
    words = {**compared(0.0, 0.0, 0.0, probability=0.5), "gain": "nan", "low": "nan", "high": "inf", "probability": "nan"}
    found = rendered(evaluation=evaluation(comparison=words, metrics={"auc": "nan", "log_loss": "inf"}, slice_gap="nan"))
    assert "auc not a number against the champion's" in found.text
    assert "the difference could not be measured" in found.text
    assert "log_loss lower is better infinite" in found.text
    assert found.all("span", **{"class": "point"}) == []


def test_values_from_data_are_escaped_as_text() -> None:
    slices = [{"columns": {HOSTILE: HOSTILE}, "support": 900, "is_small": False, "candidate": 0.5, "champion": 0.4}]
    values = [{"value": HOSTILE, "support": 7, "is_small": False, "true_positive_rate": 0.5, "calibration_error": 0.1}]
    hostile = evaluation(
        version=HOSTILE,
        baseline=HOSTILE,
        comparison=None,
        champion={**CHAMPION, "version": HOSTILE},
        metrics={"auc": 0.5, HOSTILE: 0.5},
        champion_metrics={"auc": 0.5, HOSTILE: 1.0},
        slices=slices,
        worst_slice=0,
        fairness={HOSTILE: {"equal_opportunity_gap": 0.1, "calibration_gap": 0.1, "values": values}},
        latency={HOSTILE: {"p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0, "rows_per_second": 9.0, "waited_share": 0.0}},
        checks={
            "leakage": {"feature": HOSTILE, "value": 0.5},
            "overlap": {"entities": [HOSTILE], "share": 0.5, "num_test": 2},
        },
        importance={HOSTILE: 0.1},
    )
    found = rendered(
        evaluation=hostile,
        pipeline=HOSTILE,
        as_of=HOSTILE,
        plots={HOSTILE: "<svg></svg>"},
        facts={HOSTILE: HOSTILE, "link": {"text": HOSTILE, "url": f"https://mlflow.example/{HOSTILE}"}},
        decision=decided(HOSTILE, gate=HOSTILE, words=HOSTILE, severity=HOSTILE),
    )
    assert len(found.all("script")) == 1
    assert found.all("img") == []
    assert not [name for _, attributes in found.elements for name in attributes if name.startswith("on")]
    assert found.text.count("<script>alert(1)</script>") > 15
    assert "{{ 7 * 7 }}" in found.text


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "data:text/html,x", "//elsewhere.example", "/\\elsewhere.example", "file:///etc", 7, None, " https://a"]
)
def test_only_web_addresses_become_links(url: Any) -> None:
    found = rendered(facts={"run": {"text": "abc", "url": url}})
    assert [link for link in found.all("a") if not (link["href"] or "").startswith("#")] == []
    assert "run abc" in found.text


@pytest.mark.parametrize("url", ["https://mlflow.example/#/runs/1", "http://localhost:5000/x", "/dags/p/runs/r"])
def test_web_addresses_and_paths_of_this_server_become_links(url: str) -> None:
    assert rendered(facts={"run": {"text": "abc", "url": url}}).all("a", href=url)


def test_the_page_requests_nothing_from_the_network() -> None:
    content = report_example.rendered(page(600)).decode()
    found = Page(content.encode())
    loaded = [
        attributes for _, attributes in found.elements for name in ("src", "srcset", "data", "action", "poster") if name in attributes
    ]
    assert loaded == []
    assert [link["href"] for link in found.all("link")] == ["data:,"]
    assert found.all("script") == [{}]
    assert "@import" not in content
    assert set(re.findall(r"url\((.)", content)) <= {"#"}


def test_the_page_is_built_for_readers_that_cannot_see_it() -> None:
    found = rendered()
    assert found.all("html") == [{"lang": "en"}]
    assert [name for name, _ in found.elements if name in ("h1", "h2")] == ["h1"] + ["h2"] * 9
    assert all(head.get("scope") in ("col", "row") for head in found.all("th"))
    assert all(head.get("aria-sort") == "none" for head in found.all("th") if "aria-sort" in head)
    assert all(svg.get("role") == "img" and svg.get("aria-label") for svg in found.all("svg"))
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = {attributes["aria-labelledby"] for _, attributes in found.elements if "aria-labelledby" in attributes}
    assert named <= set(ids)
    assert {(link["href"] or "")[1:] for link in found.all("a") if (link["href"] or "").startswith("#")} <= set(ids)


def test_the_same_evaluation_gives_the_same_bytes() -> None:
    assert report_example.rendered(page(600)) == report_example.rendered(page(600))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        ("nan", "not a number"),
        (float("inf"), "infinite"),
        (0.0, "0.00000"),
        (0.123456789, "0.12346"),
        (-0.00004567, "-4.57e-05"),
        (12.34567, "12.346"),
        (123456.78, "123,456.8"),
        (1234567, "1,234,567"),
        (True, "True"),
    ],
)
def test_numbers_have_the_digits_that_say_something(value: Any, words: str) -> None:
    assert number(value) == words


def test_signs_shares_thresholds_and_moments_read_as_people_write_them() -> None:
    assert [signed(value) for value in (0.5, -0.5, 0.0, "nan", None)] == ["+0.50000", "-0.50000", "0.00000", "not a number", "–"]
    assert [percent(value) for value in (0.1234, "nan", None)] == ["12.3 %", "not a number", "–"]
    assert [brief(value) for value in (0.6, 20.0, 36120.0, 0.000012, 1.23456, "nan")] == [
        "0.6",
        "20",
        "36,120",
        "1.2e-05",
        "1.235",
        "not a number",
    ]
    assert [moment(text) for text in ("2013-07-14T00:00:00+00:00", "2013-07-14T02:30:00+02:00", "2013-07-14", "soon")] == [
        "2013-07-14 00:00 UTC",
        "2013-07-14 02:30 +0200",
        "2013-07-14 00:00",
        "soon",
    ]


def test_a_model_links_to_its_run_and_its_version_in_mlflow() -> None:
    facts = mlflow_facts("http://localhost:5000/", run_id="5e1f", model="flight delay", version="7")
    found = rendered(facts=facts)
    assert found.all("a", href="http://localhost:5000/#/runs/5e1f")
    assert found.all("a", href="http://localhost:5000/#/models/flight%20delay/versions/7")


def test_without_a_server_there_are_names_and_no_links() -> None:
    found = rendered(facts=mlflow_facts("sqlite:///mlflow.db", run_id="5e1f", model="flights", version="7"))
    assert "MLflow run 5e1f" in re.sub(r"\s+", " ", found.text)
    assert "flights, version 7" in found.text
    assert [link for link in found.all("a") if not (link["href"] or "").startswith("#")] == []
    assert list(mlflow_facts("", run_id=None, model="flights", version="7")) == ["registered as"]


def test_the_interval_says_how_many_blocks_it_rests_on_and_what_replaced_too_few() -> None:
    blocks = {**BY_TIME, "low": -0.01, "high": 0.03, "lag1": 0.55}
    comparison = {**compared(0.01, -0.01, 0.03, probability=0.9), "row_low": 0.0, "row_high": 0.02}
    found = rendered(evaluation=evaluation(comparison={**comparison, "blocks": blocks})).text
    assert "by blocks [-0.01000, +0.03000], 14 blocks of 24.000 h, lag-1 autocorrelation 0.55 of time bins" in found
    few = {**blocks, "too_few_blocks": True, "num_blocks": 2, "clusters": "entity", "columns": "customer", "num_clusters": 300}
    found = rendered(evaluation=evaluation(comparison={**comparison, "blocks": few})).text
    assert "too few blocks: 2 blocks of 24.000 h, 8 required; 300 entities (customer) are the clusters" in found
    of_one_instant = {**few, "block_seconds": 0.0, "num_blocks": 1}
    found = rendered(evaluation=evaluation(comparison={**comparison, "blocks": of_one_instant})).text
    assert "by blocks [-0.01000, +0.03000], 300 entities (customer), as all test rows have one instant." in found
    none = {**few, "clusters": "none", "bounded": False, "low": "-inf", "high": "inf"}
    unbounded = {**comparison, "low": "-inf", "high": "inf", "blocks": none}
    found = rendered(evaluation=evaluation(comparison=unbounded)).text
    assert "not significantly: the interval is unbounded, too few blocks" in found
    assert "there are no entities or groups" in found


def test_a_ranking_says_its_gain_and_which_groups_are_left_out() -> None:
    ranking = {"gain": "exponential", "num_groups": 1200, "num_without_positive": 34}
    found = rendered(evaluation=evaluation(ranking=ranking)).text
    assert "NDCG has exponential gains; tied scores count by their expected value. 34 of 1,200 groups have no positive label" in found
    assert "gains; tied scores" not in rendered(evaluation=evaluation(ranking=None)).text
