"""What a stage's work is, and so when it is the same work."""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nightshift.execution import gpus
from nightshift.operators import stage_work
from nightshift.operators.stage_work import needs_of, work_of
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from nightshift.work import Work
from tests.unit.training.registry.scenes import decide_on
from training.contracts import RunIdentity, StageResult, fingerprint
from training.registry.ledger.decisions import answer_request, roll_back
from training.registry.ledger.ledger import Ledger
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, freeze, load_spec, parse_spec, resolve_uris, spec_part
from training.store import Store

SPEC_PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
AS_OF = datetime(2026, 2, 1, 2, tzinfo=UTC)
CHAMPION = {"version": "1", "model_uri": "file:///m", "weights_digest": "champions", "as_of": "…", "bounds": {}, "revision": 1}

STAGES = load_spec(SPEC_PATH).stages

WorkOf = Callable[..., Work]


def result(stage: str, digest: str = "1", **scalars: Any) -> StageResult:
    return StageResult(
        pipeline="search_ranking",
        stage=stage,
        fingerprint="f" * 64,
        artifact_uri=f"file:///store/{stage}/{digest}",
        digest=digest,
        run=RunIdentity(dag_id="search_ranking", run_id="r1", task_id=stage),
        attempt_id="a1",
        attempts=1,
        committed_at="2026-02-01T02:00:05+00:00",
        scalars=scalars,
    )


@pytest.fixture
def ask(shop: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> WorkOf:
    """Return `ask(stage, change=(old, new), as_of=…, champion=…, digests=…)`: the work of a run."""
    text = SPEC_PATH.read_text(encoding="utf-8")

    def make(
        stage: str,
        *,
        change: tuple[str, str] = ("", ""),
        as_of: datetime = AS_OF,
        champion: dict[str, Any] | None = None,
        weights: str = "candidates",
        to_approve: int = 0,
        nonce: str = "",
        overrides: dict[str, Any] | None = None,
        **digests: str,
    ) -> Work:
        assert change[0] in text
        spec = resolve_uris(parse_spec(text.replace(*change, 1).encode()), os.environ)
        resolved = ResolvedRun(
            {"spec_uri": store.put_json(freeze(spec)), "as_of": as_of.isoformat(), "force": False, "overrides": overrides or {}}
        )
        monkeypatch.setattr(stage_work, "rivals_of", lambda spec, settings: {"champion": champion, "canary": None})
        scalars: dict[str, dict[str, Any]] = {"train": {"weights_digest": weights}}
        if to_approve:
            scalars["validate"] = {"to_approve": to_approve}
        results = {name: result(maker, digests.get(name, "1"), **scalars.get(maker, {})) for name, maker in needs_of(stage, spec).items()}
        return work_of(stage, resolved, results, nonce=nonce, settings=Settings.from_environment())

    return make


@pytest.mark.parametrize("stage", ["evaluate", "promote"])
def test_stages_after_a_training_know_its_address_where_its_mlflow_run_is_recorded(stage: str, ask: WorkOf, store: Store) -> None:
    assert ask(stage).parameters["training_uri"] == f"{store.root_uri}/stages/search_ranking/train/{'f' * 64}"


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_work_has_the_same_name_and_a_forced_one_its_own(stage: str, ask: WorkOf) -> None:
    assert ask(stage).fingerprint == ask(stage).fingerprint
    assert ask(stage, nonce="r1").fingerprint not in (ask(stage).fingerprint, ask(stage, nonce="r2").fingerprint)


def test_stages_never_share_a_name(ask: WorkOf) -> None:
    assert len({ask(stage).fingerprint for stage in STAGES}) == len(STAGES)


def test_a_repaired_partition_is_new_work_for_ingest(ask: WorkOf, shop: Path) -> None:
    before = ask("ingest")
    (shop / "dt=2026-01-31" / "part-0.parquet").write_bytes(b"repaired, and longer")
    after = ask("ingest")
    assert before.fingerprint != after.fingerprint
    assert [entry["partition"] for entry in after.parameters["listing"]["clicks"]][-1] == "2026-01-31"


def test_another_night_is_new_work_for_ingest(ask: WorkOf) -> None:
    assert ask("ingest").fingerprint != ask("ingest", as_of=AS_OF + timedelta(hours=1)).fingerprint


def test_validate_depends_on_the_night_before_and_on_the_suite(
    ask: WorkOf, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask("validate")
    assert first.parameters["previous_snapshot"] is None
    assert store.ref("snapshots/search_ranking/2026-01-31T020000Z").move("file:///store/night-before", expected=0)
    second = ask("validate")
    assert second.parameters["previous_snapshot"] == "file:///store/night-before"
    suites = tmp_path / "expectations"
    (suites / "search_ranking").mkdir(parents=True)
    (suites / "search_ranking" / "clicks.json").write_text(json.dumps({"expectations": []}), encoding="utf-8")
    monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", str(suites))
    third = ask("validate")
    assert third.parameters["previous_snapshot"] == second.parameters["previous_snapshot"]
    stored = store.objects.get_bytes(third.parameters["suites"]["search_ranking/clicks"].rsplit("/", 1)[-1])
    assert json.loads(stored) == {"expectations": []}, "the stage judges by the very file that the operator saw"
    assert len({first.fingerprint, second.fingerprint, third.fingerprint}) == 3


def test_validate_compares_with_the_profiles_of_the_previous_snapshot_and_of_the_champions(ask: WorkOf, store: Store) -> None:
    ledger = Ledger(Settings.from_environment().database_url)
    plain = ask("validate")
    # The champion of the night before, and the model that this very run made champion before it was repeated.
    decide_on(ledger, 1, model="search_ranking", as_of=(AS_OF - timedelta(days=1)).isoformat(), evidence={"snapshot_digest": "1" * 64})
    assert ask("validate").fingerprint == plain.fingerprint, "without a profile there is nothing to compare with"
    profiles = {digit: store.put_json({"profile": digit}) for digit in "123"}
    for digit, uri in profiles.items():
        assert store.ref(f"profiles/search_ranking/{digit * 64}").move(uri, expected=0)
    first = ask("validate")
    assert first.parameters["earlier"] == [{"names": ["champion"], "profile": profiles["1"]}]
    decide_on(ledger, 2, model="search_ranking", as_of=AS_OF.isoformat(), evidence={"snapshot_digest": "2" * 64})
    assert ask("validate").fingerprint == first.fingerprint
    assert store.ref("snapshots/search_ranking/2026-01-31T020000Z").move(f"file:///s/manifests/sha256/33/{'3' * 64}.json", expected=0)
    both = [{"names": ["previous"], "profile": profiles["3"]}, {"names": ["champion"], "profile": profiles["1"]}]
    assert ask("validate").parameters["earlier"] == both
    only = ask("validate", change=("  freshness: 36h", "  freshness: 36h\n  drift: {against: [previous]}"))
    assert only.parameters["earlier"] == both[:1]


def test_after_a_rollback_validate_compares_with_the_data_of_the_version_rolled_back_to(ask: WorkOf, store: Store) -> None:
    ledger = Ledger(Settings.from_environment().database_url)
    for number in (1, 2):
        as_of = (AS_OF - timedelta(days=3 - number)).isoformat()
        decide_on(ledger, number, model="search_ranking", as_of=as_of, evidence={"snapshot_digest": str(number) * 64})
        assert store.ref(f"profiles/search_ranking/{str(number) * 64}").move(store.put_json({"of": number}), expected=0)
    newest = ask("validate").parameters["earlier"]
    roll_back(ledger, "search_ranking", by="ada", reason="late")
    assert newest != ask("validate").parameters["earlier"] == [{"names": ["champion"], "profile": store.put_json({"of": 1})}]


def test_a_snapshot_that_is_the_previous_one_and_the_champions_is_compared_once(ask: WorkOf, store: Store) -> None:
    ledger = Ledger(Settings.from_environment().database_url)
    decide_on(ledger, 1, model="search_ranking", as_of=(AS_OF - timedelta(days=1)).isoformat(), evidence={"snapshot_digest": "1" * 64})
    assert store.ref("snapshots/search_ranking/2026-01-31T020000Z").move(f"file:///s/manifests/sha256/11/{'1' * 64}.json", expected=0)
    uri = store.put_json({"profile": 1})
    assert store.ref(f"profiles/search_ranking/{'1' * 64}").move(uri, expected=0)
    assert ask("validate").parameters["earlier"] == [{"names": ["previous", "champion"], "profile": uri}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (("owner: search-relevance", "owner: others"), set()),
        (("wait: 2h", "wait: 3h"), set()),
        (("failures: 2", "failures: 3"), set()),
        (("every: 10m", "every: 20m"), set()),
        (("window: 30d", "window: 29d"), {"ingest", "validate", "prepare"}),
        (("volume_change: 0.2", "volume_change: 0.3"), {"validate"}),
        (("price: {transform: log}", "price: {transform: standard}"), {"prepare"}),
        (("epochs: 3", "epochs: 4"), {"train"}),
        (("processes_per_node: 2", "processes_per_node: 1"), {"train"}),
        (("slice_support: 500", "slice_support: 400"), {"evaluate"}),
    ],
)
def test_a_change_of_the_spec_is_new_work_for_what_depends_on_it(change: tuple[str, str], changed: set[str], ask: WorkOf) -> None:
    assert {stage for stage in STAGES if ask(stage).fingerprint != ask(stage, change=change).fingerprint} == changed


def test_new_inputs_are_new_work(ask: WorkOf) -> None:
    assert ask("prepare").fingerprint != ask("prepare", snapshot="2").fingerprint
    assert ask("train").fingerprint != ask("train", dataset="2").fingerprint
    assert ask("evaluate").fingerprint != ask("evaluate", dataset="2").fingerprint
    assert ask("evaluate").fingerprint != ask("evaluate", weights="others").fingerprint
    assert ask("promote").fingerprint != ask("promote", evaluation="2").fingerprint


def test_a_model_is_evaluated_again_against_another_champion(ask: WorkOf) -> None:
    alone, against = ask("evaluate"), ask("evaluate", champion=CHAMPION)
    moved = ask("evaluate", champion={**CHAMPION, "revision": 2})
    assert len({alone.fingerprint, against.fingerprint, moved.fingerprint}) == 3
    assert against.parameters["champion"] == CHAMPION


def test_once_a_model_is_champion_its_evaluation_is_the_one_that_made_it_so(ask: WorkOf) -> None:
    before = ask("evaluate", champion=CHAMPION)
    itself = {**CHAMPION, "weights_digest": "candidates", "revision": 2}
    after = ask("evaluate", champion=itself)
    assert after.fingerprint == before.fingerprint
    assert after.parameters["champion"] == CHAMPION


def test_an_evaluation_depends_on_the_validation_only_where_a_person_has_to_approve_the_data(ask: WorkOf) -> None:
    before, other = ask("evaluate"), ask("evaluate", validation="2")
    assert other.fingerprint == before.fingerprint
    assert "validation" not in other.inputs
    first, second = (ask("evaluate", validation=digest, to_approve=1) for digest in "12")
    assert len({before.fingerprint, first.fingerprint, second.fingerprint}) == 3
    assert second.inputs["validation"] == "file:///store/validate/2"


def test_requests_carry_what_each_stage_is_promised(ask: WorkOf) -> None:
    assert set(ask("ingest").parameters) == {"listing"}
    assert ask("train").parameters == {"world_size": 2, "snapshot_digest": "1"}
    assert ask("promote").inputs == {
        "model": "file:///store/train/1",
        "evaluation": "file:///store/evaluate/1",
        "snapshot": "file:///store/ingest/1",
        "dataset": "file:///store/prepare/1",
    }


def test_training_on_a_gpu_is_other_work_and_one_on_the_cpu_is_named_as_before(ask: WorkOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "local_gpus", lambda: False)
    on_cpu = ask("train")
    monkeypatch.setattr(gpus, "local_gpus", lambda: True)
    on_gpu = ask("train")
    assert on_gpu.fingerprint != on_cpu.fingerprint
    assert on_gpu.parameters["device"] == "cuda"
    assert "device" not in on_cpu.parameters
    covered = {"dataset": "1", "world_size": 2}
    part = spec_part(load_spec(SPEC_PATH), "train")
    assert on_cpu.fingerprint == fingerprint("train", spec_part=part, code_version=on_cpu.code_version, inputs=covered)


def test_overridden_thresholds_are_another_decision_and_travel_with_the_request(ask: WorkOf) -> None:
    plain, trained = ask("promote"), ask("promote", overrides={"train.epochs": 5})
    judged = ask("promote", overrides={"evaluate.confidence": 0.9})
    assert "overrides" not in plain.parameters
    # Another training is another model already, and so another decision.
    assert trained.fingerprint == plain.fingerprint
    assert trained.parameters["overrides"] == {"train.epochs": 5}
    assert judged.fingerprint != plain.fingerprint
    assert judged.parameters["overrides"] == {"evaluate.confidence": 0.9}


def test_the_spec_that_a_run_froze_is_the_spec_of_all_its_stages(ask: WorkOf, store: Store) -> None:
    spec = load_spec(SPEC_PATH)
    resolved = ResolvedRun({"spec_uri": store.put_json(freeze(spec)), "as_of": AS_OF.isoformat(), "force": "a1"})
    assert isinstance(resolved.spec, PipelineSpec)
    assert (resolved.spec, resolved.as_of, resolved.force) == (PipelineSpec.thaw(freeze(spec)), AS_OF, "a1")


def test_canary_stage_is_given_the_instant_from_which_its_verdict_counts(ask: WorkOf) -> None:
    ledger = Ledger(Settings.from_environment().database_url)
    assert ask("canary").parameters["canary_since"] is None
    decide_on(ledger, 1, model="search_ranking")
    decide_on(ledger, 2, model="search_ranking", canary=True)
    canary = ledger.standing("search_ranking").canary
    assert canary is not None
    assert ask("canary").parameters["canary_since"] == canary.since


def test_canary_stage_is_given_what_a_person_approved_about_the_canary(ask: WorkOf) -> None:
    ledger = Ledger(Settings.from_environment().database_url)
    assert ask("canary").parameters["canary_approved"] == []
    decide_on(ledger, 1, model="search_ranking")
    bound = {"gate": "minimum", "passed": False, "severity": "approve", "words": "mrr 0.1", "numbers": {"metric": "mrr", "bound": 0.2}}
    request = decide_on(ledger, 2, "needs_approval", model="search_ranking", canary=True, reasons=[bound])
    answer_request(ledger, request, "approved", by="eve", words="eve said yes")
    found = {"gate": "minimum", "words": "mrr 0.1", "numbers": {"metric": "mrr", "bound": 0.2}, "by": "eve"}
    assert ask("canary").parameters["canary_approved"] == [found]
