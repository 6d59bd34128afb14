"""A run's first task, and the wait for late partitions."""

import json
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException

from nightshift.operators.resolve import ResolveOperator
from nightshift.operators.wait import WaitForData
from nightshift.resolved_run import ResolvedRun
from training.errors import UnavailableError
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec
from training.store import Store

SPEC_PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
Context = Callable[..., Any]
Execute = Callable[[BaseOperator, Any], Any]


@pytest.fixture
def resolve() -> ResolveOperator:
    return ResolveOperator(task_id="resolve", spec_path=str(SPEC_PATH))


@pytest.fixture
def wait() -> WaitForData:
    return WaitForData(task_id="wait", wait=timedelta(hours=2))


def test_the_spec_is_frozen_with_its_places(
    resolve: ResolveOperator, shop: Path, store: Store, context_of: Context, execute: Execute
) -> None:
    values = execute(resolve, context_of("resolve", conf={"train": {"epochs": 5}}))
    settled = {"as_of": "2026-02-01T02:00:00+00:00", "force": "", "overrides": {"train.epochs": 5}}
    assert values == {"spec_uri": values["spec_uri"], **settled}
    frozen = store.get_json(values["spec_uri"])
    assert PipelineSpec.thaw(frozen).train.epochs == 5
    assert frozen["data"]["source"]["uri"] == shop.as_uri()
    assert frozen["alerts"]["webhook"] is None


def test_run_that_may_not_promote_is_settled_and_recorded_as_such(
    resolve: ResolveOperator, shop: Path, context_of: Context, execute: Execute
) -> None:
    values = execute(resolve, context_of("resolve", conf={"promote": False}))
    assert values["overrides"] == {"promote": False}
    assert not ResolvedRun(values).may_promote
    values = execute(resolve, context_of("resolve", conf={"promote": True}))
    assert "overrides" not in values
    assert ResolvedRun(values).may_promote


@pytest.mark.parametrize("run_id", [".", "..", "night\n", "a/b", ""])
def test_a_run_id_that_the_store_has_no_folder_for_is_refused_with_the_reason(
    resolve: ResolveOperator, shop: Path, context_of: Context, execute: Execute, run_id: str
) -> None:
    with pytest.raises(AirflowFailException, match=r"\[run\.id\] the run id '.*' cannot name a folder in the store"):
        execute(resolve, context_of("resolve", run_id=run_id))


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"train": {"placement": {"memory": "3GiB"}, "checkpoint": {"keep": 9}}}, "its work is that of the YAML"),
        ({"train": {"placement": {"processes_per_node": 1}}}, "its work is another than the YAML's from train on"),
        ({"data": {"source": {"window": "20d"}}}, "its work is another than the YAML's from ingest on"),
    ],
)
def test_the_log_says_what_the_overrides_of_a_run_change(
    resolve: ResolveOperator, shop: Path, context_of: Context, execute: Execute, capsys: pytest.CaptureFixture[str], conf: Any, words: str
) -> None:
    execute(resolve, context_of("resolve", conf=conf))
    assert words in capsys.readouterr().out


def test_the_training_of_one_run_has_the_resources_that_the_trigger_gives(
    resolve: ResolveOperator, shop: Path, store: Store, context_of: Context, execute: Execute
) -> None:
    given = {"processes_per_node": 1, "cpus": 1, "memory": "3GiB"}
    values = execute(resolve, context_of("resolve", conf={"train": {"placement": given}}))
    placement = PipelineSpec.thaw(store.get_json(values["spec_uri"])).train.placement
    assert (placement.world_size, placement.cpus, placement.memory) == (1, 1.0, 3 * 2**30)
    assert values["overrides"] == {f"train.placement.{key}": value for key, value in given.items()}


def test_the_form_sent_unchanged_is_the_run_without_a_form(
    resolve: ResolveOperator, shop: Path, context_of: Context, execute: Execute
) -> None:
    from nightshift.wiring.pipeline import pipeline_dag

    form = pipeline_dag(str(CHECKOUT / "dags" / "search_ranking.py")).params.dump()
    assert execute(resolve, context_of("resolve", conf=form)) == execute(resolve, context_of("resolve"))


@pytest.mark.parametrize(
    ("run", "as_of"),
    [
        # Cron and backfill: the slot.
        (
            {"logical_date": datetime(2026, 1, 20, 2, tzinfo=UTC), "run_after": datetime(2026, 1, 20, 2, tzinfo=UTC)},
            "2026-01-20T02:00:00+00:00",
        ),
        # By hand: the last slot before the present, whatever the microsecond.
        ({"run_after": datetime(2026, 2, 3, 15, 4, 5, 678, tzinfo=UTC)}, "2026-02-03T02:00:00+00:00"),
        ({"run_after": datetime(2026, 2, 3, 1, 59, 59, tzinfo=UTC)}, "2026-02-02T02:00:00+00:00"),
        # By hand with a logical date on the command line.
        ({"logical_date": datetime(2026, 1, 20, tzinfo=UTC), "run_after": datetime(2026, 2, 3, tzinfo=UTC)}, "2026-01-20T00:00:00+00:00"),
        ({"conf": {"as_of": "2026-01-15"}, "logical_date": datetime(2026, 1, 20, tzinfo=UTC)}, "2026-01-15T00:00:00+00:00"),
        ({"conf": {"as_of": "2026-01-15T02:00:00+01:00"}}, "2026-01-15T01:00:00+00:00"),
    ],
)
def test_every_way_to_start_a_run_has_its_as_of(
    run: dict[str, Any], as_of: str, resolve: ResolveOperator, shop: Path, context_of: Context, execute: Execute
) -> None:
    assert execute(resolve, context_of("resolve", **run))["as_of"] == as_of


@pytest.mark.parametrize("name", ["parameter", "logical date"])
def test_an_as_of_later_than_now_is_refused_and_freezes_nothing(
    name: str, resolve: ResolveOperator, shop: Path, store: Store, context_of: Context, execute: Execute
) -> None:
    future = datetime.now(UTC) + timedelta(hours=1)
    run = {"conf": {"as_of": future.isoformat()}} if name == "parameter" else {"logical_date": future}
    with pytest.raises(
        AirflowFailException, match=r"as_of: \[as_of\.future\] 20.* is later than now \(20.*\) \(choose an instant in the past"
    ):
        execute(resolve, context_of("resolve", **run))
    assert store.run_ref("search_ranking", "r1", "settled").read() is None


def test_a_clock_that_is_a_minute_behind_refuses_no_run(
    resolve: ResolveOperator, shop: Path, context_of: Context, execute: Execute
) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=1)
    assert execute(resolve, context_of("resolve", conf={"as_of": soon.isoformat()}))["as_of"] == soon.isoformat()


def test_every_problem_of_a_trigger_is_reported(resolve: ResolveOperator, shop: Path, context_of: Context, execute: Execute) -> None:
    conf = {"as_of": "yesterday", "epochs": 3, "train": {"epochs": 0, "learning_rate": float("nan")}}
    with pytest.raises(AirflowFailException) as caught:
        execute(resolve, context_of("resolve", conf=conf))
    assert "train.learning_rate: [field.range] must be finite, got nan" in str(caught.value)
    conf["train"] = {"epochs": 0}
    with pytest.raises(AirflowFailException) as caught:
        execute(resolve, context_of("resolve", conf=conf))
    assert "[conf.unknown_key]" in str(caught.value)
    del conf["epochs"]
    with pytest.raises(AirflowFailException) as caught:
        execute(resolve, context_of("resolve", conf=conf))
    assert "[as_of.invalid] 'yesterday' is not a time" in str(caught.value)
    assert "train.epochs: " in str(caught.value)


def test_unknown_key_of_a_trigger_ends_the_run_with_the_nearest_key_and_no_retry(
    resolve: ResolveOperator, installation: Path, context_of: Context, execute: Execute
) -> None:
    """Nothing else is looked at before: neither the sources, which are not set here, nor the store."""
    with pytest.raises(AirflowFailException) as caught:
        execute(resolve, context_of("resolve", conf={"as_off": "2026-01-31"}))
    assert "as_off: [conf.unknown_key] unknown key 'as_off' (did you mean as_of?)" in str(caught.value)
    assert "exit code 64" in str(caught.value)


def test_a_place_that_is_not_set_is_named(resolve: ResolveOperator, installation: Path, context_of: Context, execute: Execute) -> None:
    with pytest.raises(
        AirflowFailException, match=r"\[uri.unset\] the environment variable SHOP_URI is not set as a place of data \(set SHOP_URI to"
    ):
        execute(resolve, context_of("resolve"))


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what the task's log says of keys without effect; Airflow writes it to stdout, with a time and a level before each line."""
    found = [
        re.search(r"the backend .* ignores [^\[]*[^\s\[]|alerts\.webhook: [^\[]*[^\s\[]", line)
        for line in capsys.readouterr().out.splitlines()
    ]
    return [match[0] for match in found if match]


def spec_file(folder: Path, old: str, new: str) -> ResolveOperator:
    text = SPEC_PATH.read_text(encoding="utf-8")
    assert old in text
    (folder / SPEC_PATH.name).write_text(text.replace(old, new, 1), encoding="utf-8")
    return ResolveOperator(task_id="resolve", spec_path=str(folder / SPEC_PATH.name))


def test_keys_that_the_local_backend_ignores_are_one_log_line(
    tmp_path: Path,
    shop: Path,
    monkeypatch: pytest.MonkeyPatch,
    context_of: Context,
    execute: Execute,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ALERTS_URI", "https://alerts.test/x")
    placed = "nodes: 2, processes_per_node: 2, cpus: 4, memory: 8GiB, gpus: 2, accelerator: a100, spot: true, topology: zone, priority: p"
    resolve = spec_file(tmp_path, "nodes: 1, processes_per_node: 2", placed)
    execute(resolve, context_of("resolve"))
    named = [f"train.placement.{key}" for key in ("memory", "gpus", "accelerator", "spot", "topology", "priority")]
    assert lines_of(capsys) == [f"the backend local ignores {', '.join(named)}"]


def test_amounts_of_single_stages_are_named_as_ignored_on_the_local_backend(
    tmp_path: Path, shop: Path, monkeypatch: pytest.MonkeyPatch, context_of: Context, execute: Execute, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALERTS_URI", "https://alerts.test/x")
    sizes = "resources: {prepare: {cpus: 2}, evaluate: {memory: 8GiB}}"
    resolve = spec_file(tmp_path, "promote: {", f"{sizes}\npromote: {{")
    execute(resolve, context_of("resolve"))
    assert lines_of(capsys) == ["the backend local ignores resources.prepare, resources.evaluate"]


@pytest.mark.parametrize(("spot", "lines"), [("", ["the backend kubernetes ignores train.placement.spot"]), ("spot: {}\n", [])])
def test_spot_is_named_as_ignored_where_the_clusters_file_has_no_spot_nodes(
    spot: str,
    lines: list[str],
    tmp_path: Path,
    shop: Path,
    monkeypatch: pytest.MonkeyPatch,
    context_of: Context,
    execute: Execute,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = tmp_path / "placement.yaml"
    cluster.write_text(f"namespace: n\nimage: i\n{spot}", encoding="utf-8")
    for name, value in (("NIGHTSHIFT_BACKEND", "kubernetes"), ("NIGHTSHIFT_KUBERNETES", str(cluster)), ("ALERTS_URI", "https://a.test")):
        monkeypatch.setenv(name, value)
    resolve = spec_file(tmp_path, "nodes: 1, processes_per_node: 2", "nodes: 1, processes_per_node: 2, memory: 8GiB, spot: true")
    execute(resolve, context_of("resolve"))
    assert lines_of(capsys) == lines


def test_shipped_pipeline_logs_an_unset_webhook_and_no_ignored_key(
    resolve: ResolveOperator, shop: Path, context_of: Context, execute: Execute, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(resolve, context_of("resolve"))
    assert lines_of(capsys) == ["alerts.webhook: the environment variable ALERTS_URI is not set, so no alert is posted"]


def test_a_place_noted_after_the_services_started_is_used(
    resolve: ResolveOperator, shop: Path, store: Store, monkeypatch: pytest.MonkeyPatch, context_of: Context, execute: Execute
) -> None:
    monkeypatch.delenv("SHOP_URI")
    (shop.parents[1] / "sources.json").write_text(json.dumps({"SHOP_URI": str(shop.parent)}))
    values = execute(resolve, context_of("resolve"))
    assert store.get_json(values["spec_uri"])["data"]["source"]["uri"] == shop.as_uri()


def test_a_backend_that_is_not_there_ends_the_run_at_once(
    resolve: ResolveOperator, shop: Path, monkeypatch: pytest.MonkeyPatch, context_of: Context, execute: Execute
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_BACKEND", "moon")
    with pytest.raises(AirflowFailException, match=r"settings\.backend"):
        execute(resolve, context_of("resolve"))


def test_a_store_that_does_not_answer_may_answer_later(
    resolve: ResolveOperator, shop: Path, monkeypatch: pytest.MonkeyPatch, context_of: Context, execute: Execute
) -> None:
    def refuse(*_arguments: object) -> str:
        raise UnavailableError("storage.unavailable", "could not write")

    monkeypatch.setattr(Store, "put_json", refuse)
    with pytest.raises(UnavailableError):
        execute(resolve, context_of("resolve"))


def test_complete_partitions_pass_at_once(
    resolve: ResolveOperator, wait: WaitForData, shop: Path, context_of: Context, execute: Execute
) -> None:
    frozen = execute(resolve, context_of("resolve"))
    assert execute(wait, context_of("wait", results={"resolve": frozen})) is None


def test_a_late_partition_is_waited_for_without_a_slot(
    resolve: ResolveOperator, wait: WaitForData, shop: Path, context_of: Context, execute: Execute
) -> None:
    frozen = execute(resolve, context_of("resolve"))
    late = shop / "dt=2026-01-31"
    shutil.rmtree(late)
    started = datetime.now(UTC) - timedelta(hours=1)
    context = context_of("wait", results={"resolve": frozen}, start_date=started)
    with pytest.raises(AirflowRescheduleException) as caught:
        execute(wait, context)
    assert datetime.now(UTC) < caught.value.reschedule_date <= datetime.now(UTC) + timedelta(seconds=60)
    late.mkdir()
    (late / "part-0.parquet").write_bytes(b"here it is")
    assert execute(wait, context) is None


def test_the_last_look_is_when_the_time_is_over(
    resolve: ResolveOperator, wait: WaitForData, shop: Path, context_of: Context, execute: Execute
) -> None:
    frozen = execute(resolve, context_of("resolve"))
    shutil.rmtree(shop / "dt=2026-01-31")
    started = datetime.now(UTC) - timedelta(hours=1, minutes=59, seconds=50)
    with pytest.raises(AirflowRescheduleException) as caught:
        execute(wait, context_of("wait", results={"resolve": frozen}, start_date=started))
    assert caught.value.reschedule_date == started + timedelta(hours=2)


def test_after_the_time_the_missing_partitions_are_named(
    resolve: ResolveOperator, wait: WaitForData, shop: Path, context_of: Context, execute: Execute
) -> None:
    frozen = execute(resolve, context_of("resolve"))
    for day in ("2026-01-30", "2026-01-31"):
        shutil.rmtree(shop / f"dt={day}")
    context = context_of("wait", results={"resolve": frozen}, start_date=datetime.now(UTC) - timedelta(hours=2))
    with pytest.raises(AirflowFailException) as caught:
        execute(wait, context)
    assert str(caught.value) == (
        f"[partition.missing] 2 of 30 partitions of clicks are not there: {shop.as_uri()}/dt=2026-01-30, {shop.as_uri()}/dt=2026-01-31 "
        "(the run waited 2h, data.source.wait; trigger it once they are)"
    )


def test_without_what_resolve_settled_the_wait_fails(wait: WaitForData, shop: Path, context_of: Context, execute: Execute) -> None:
    with pytest.raises(AirflowFailException, match="task 'resolve' left no result"):
        execute(wait, context_of("wait"))


@pytest.mark.parametrize(("hours", "seconds"), [(0, 2), (0.1, 6), (2, 60), (24, 60)])
def test_looks_are_neither_rare_nor_hasty(hours: float, seconds: float) -> None:
    sensor = WaitForData(task_id="wait", wait=timedelta(hours=hours))
    assert sensor.poke_interval == seconds
    assert sensor.mode == "reschedule"
