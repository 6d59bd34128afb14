"""What a stage's work is, and so when it is the same work."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
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
from training.contracts import RunIdentity, StageResult, work_id
from training.errors import DeniedError
from training.registry.ledger.decisions import answer_request, roll_back
from training.registry.ledger.ledger import Ledger
from training.registry.ledger.reasons import Reason
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, freeze, load_spec, parse_spec, resolve_uris, spec_part
from training.store import Bucket, Store
from training.store.condemned import Condemned
from training.store.work_folder import StoreUri

SPEC_PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
AS_OF = datetime(2026, 2, 1, 2, tzinfo=UTC)
CHAMPION = {
    "version": "1",
    "model_uri": "file:///m",
    "weights_digest": "champions",
    "as_of": "2026-01-01T00:00:00+00:00",
    "bounds": {},
    "revision": 1,
}

STAGES = load_spec(SPEC_PATH).stages
TRAINED_SECONDS = 1800.0

WorkOf = Callable[..., Work]


def result(stage: str, digest: str = "1", **scalars: Any) -> StageResult:
    return StageResult(
        pipeline="search_ranking",
        stage=stage,
        work_id="f" * 64,
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
        best_epoch: int = 1,
        seconds: float = 0.0,
        to_approve: int = 0,
        nonce: str = "",
        read_only: bool = False,
        overrides: dict[str, Any] | None = None,
        simulated: bool = False,
        **digests: str,
    ) -> Work:
        assert change[0] in text
        spec = resolve_uris(parse_spec(text.replace(*change, 1).encode()), os.environ)
        resolved = ResolvedRun(
            {
                "spec_uri": store.put_json(freeze(spec)),
                "as_of": as_of.isoformat(),
                "force": nonce,
                "overrides": overrides or {},
                "simulated": simulated,
            }
        )
        monkeypatch.setattr(stage_work, "rivals_of", lambda spec, settings: {"champion": champion, "canary": None})
        scalars: dict[str, dict[str, Any]] = {stage: {"weights_digest": weights, "best_epoch": best_epoch} for stage in ("train", "refit")}
        if to_approve:
            scalars["validate"] = {"to_approve": to_approve}
        scalars["refit"]["trained_seconds"] = TRAINED_SECONDS
        results = {
            name: replace(result(maker, digests.get(name, "1"), **scalars.get(maker, {})), timings={"total": seconds})
            for name, maker in needs_of(stage, spec).items()
        }
        with refusing_writes() if read_only else nullcontext():
            return work_of(stage, resolved, results, settings=Settings.from_environment())

    return make


@contextmanager
def refusing_writes() -> Iterator[None]:
    """Have every store refuse whatever would change it."""

    def refuse(_bucket: Bucket, key: str, *_rest: object, **_named: object) -> Any:
        raise DeniedError("storage.denied", f"a write to {key}")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("put", "create", "create_own", "replace", "upload", "delete"):
            patch.setattr(Bucket, name, refuse)
        yield


@pytest.fixture
def add_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bytes]:
    """Return `add_suite()`: it writes the suite of the pipeline's main table to the installation, and returns its bytes."""

    def add() -> bytes:
        path = tmp_path / "expectations" / "search_ranking" / "clicks.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"expectations": []}), encoding="utf-8")
        monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", str(tmp_path / "expectations"))
        return path.read_bytes()

    return add


@pytest.mark.parametrize("stage", [*STAGES, "canary"])
def test_work_is_looked_up_without_a_write_to_the_store(stage: str, ask: WorkOf, store: Store, add_suite: Callable[[], bytes]) -> None:
    """Where a pin, the suite or a claim on a result that is about to be collected could be one."""
    add_suite()
    first = ask(stage, champion=CHAMPION)
    first.folder.create_result(replace(result(stage), work_id=first.id))
    Condemned(store.bucket).condemn(f"stages/search_ranking/{stage}/{first.id}")
    refused, free = ask(stage, champion=CHAMPION, read_only=True), ask(stage, champion=CHAMPION)
    assert (refused.id, refused.folder.uri) == (free.id, free.folder.uri)
    assert replace(refused, folder=free.folder) == free


def test_pins_written_twice_are_written_once(ask: WorkOf, store: Store) -> None:
    work = ask("evaluate", champion=CHAMPION)
    (pin,) = work.ref_pins
    work.pin(store)
    work.pin(store)
    head = store.ref(pin.name).read()
    assert head is not None
    assert (head.number, head.value) == (1, {"champion": CHAMPION, "canary": None})
    assert ask("evaluate", champion=CHAMPION).ref_pins == (), "what is pinned already is not pinned again"


@pytest.mark.parametrize("stage", ["evaluate", "promote"])
def test_stages_after_a_training_know_its_work_folder_where_its_mlflow_run_is_recorded(stage: str, ask: WorkOf, store: Store) -> None:
    assert ask(stage).parameters["training_uri"] == f"{store.root_uri}/stages/search_ranking/train/{'f' * 64}"


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_work_has_the_same_name_and_a_forced_one_its_own(stage: str, ask: WorkOf) -> None:
    assert ask(stage).id == ask(stage).id
    assert ask(stage, nonce="r1").id not in (ask(stage).id, ask(stage, nonce="r2").id)


def test_run_that_may_not_promote_has_the_work_of_other_runs_but_for_its_validation(ask: WorkOf) -> None:
    kept = {"promote": False}
    assert [stage for stage in STAGES if ask(stage, overrides=kept).id != ask(stage).id] == ["validate"]
    assert ask("validate", overrides=kept).parameters["is_reference"] is False
    assert "is_reference" not in ask("validate").parameters


def test_snapshot_over_another_window_is_no_reference_for_later_runs(ask: WorkOf) -> None:
    assert ask("validate", overrides={"data.source.window": "9d"}).parameters["is_reference"] is False


def test_stages_never_share_a_name(ask: WorkOf) -> None:
    assert len({ask(stage).id for stage in STAGES}) == len(STAGES)


def test_a_repaired_partition_is_new_work_for_ingest(ask: WorkOf, shop: Path) -> None:
    before = ask("ingest")
    (shop / "dt=2026-01-31" / "part-0.parquet").write_bytes(b"repaired, and longer")
    after = ask("ingest")
    assert before.id != after.id
    assert [entry["partition"] for entry in after.parameters["listing"]["clicks"]][-1] == "2026-01-31"


def test_another_night_is_new_work_for_ingest(ask: WorkOf) -> None:
    assert ask("ingest").id != ask("ingest", as_of=AS_OF + timedelta(hours=1)).id


def test_validate_depends_on_the_night_before_and_on_the_suite(ask: WorkOf, store: Store, add_suite: Callable[[], bytes]) -> None:
    first = ask("validate")
    assert first.parameters["previous_snapshot"] is None
    assert store.ref("snapshots/search_ranking/2026-01-31T020000Z").move("file:///store/night-before", expected=0)
    second = ask("validate")
    assert second.parameters["previous_snapshot"] == "file:///store/night-before"
    data = add_suite()
    third = ask("validate")
    assert third.parameters["previous_snapshot"] == second.parameters["previous_snapshot"]
    third.pin(store)
    uri = third.parameters["suites"]["search_ranking/clicks"]
    assert store.objects.get_bytes(StoreUri(uri).digest) == data, "the stage judges by the very file that the operator saw"
    assert len({first.id, second.id, third.id}) == 3


def test_validate_compares_with_the_profiles_of_the_previous_snapshot_and_of_the_champions(ask: WorkOf, store: Store) -> None:
    ledger = Ledger(Settings.from_environment().database_url)
    plain = ask("validate")
    # The champion of the night before, and the model that this very run made champion before it was repeated.
    decide_on(ledger, 1, model="search_ranking", as_of=AS_OF - timedelta(days=1), evidence={"snapshot_digest": "1" * 64})
    assert ask("validate").id == plain.id, "without a profile there is nothing to compare with"
    profiles = {digit: store.put_json({"profile": digit}) for digit in "123"}
    for digit, uri in profiles.items():
        assert store.ref(f"profiles/search_ranking/{digit * 64}").move(uri, expected=0)
    first = ask("validate")
    assert first.parameters["earlier"] == [{"names": ["champion"], "profile": profiles["1"]}]
    decide_on(ledger, 2, model="search_ranking", as_of=AS_OF, evidence={"snapshot_digest": "2" * 64})
    assert ask("validate").id == first.id
    assert store.ref("snapshots/search_ranking/2026-01-31T020000Z").move(f"file:///s/manifests/sha256/33/{'3' * 64}.json", expected=0)
    both = [{"names": ["previous"], "profile": profiles["3"]}, {"names": ["champion"], "profile": profiles["1"]}]
    assert ask("validate").parameters["earlier"] == both
    only = ask("validate", change=("  freshness: 36h", "  freshness: 36h\n  drift: {against: [previous]}"))
    assert only.parameters["earlier"] == both[:1]


def test_after_a_rollback_validate_compares_with_the_data_of_the_version_rolled_back_to(ask: WorkOf, store: Store) -> None:
    ledger = Ledger(Settings.from_environment().database_url)
    for number in (1, 2):
        as_of = AS_OF - timedelta(days=3 - number)
        decide_on(ledger, number, model="search_ranking", as_of=as_of, evidence={"snapshot_digest": str(number) * 64})
        assert store.ref(f"profiles/search_ranking/{str(number) * 64}").move(store.put_json({"of": number}), expected=0)
    newest = ask("validate").parameters["earlier"]
    roll_back(ledger, "search_ranking", by="ada", reason="late")
    assert newest != ask("validate").parameters["earlier"] == [{"names": ["champion"], "profile": store.put_json({"of": 1})}]


def test_a_snapshot_that_is_the_previous_one_and_the_champions_is_compared_once(ask: WorkOf, store: Store) -> None:
    ledger = Ledger(Settings.from_environment().database_url)
    decide_on(ledger, 1, model="search_ranking", as_of=AS_OF - timedelta(days=1), evidence={"snapshot_digest": "1" * 64})
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
    assert {stage for stage in STAGES if ask(stage).id != ask(stage, change=change).id} == changed


def test_new_inputs_are_new_work(ask: WorkOf) -> None:
    assert ask("prepare").id != ask("prepare", snapshot="2").id
    assert ask("train").id != ask("train", dataset="2").id
    assert ask("evaluate").id != ask("evaluate", dataset="2").id
    assert ask("evaluate").id != ask("evaluate", weights="others").id
    assert ask("promote").id != ask("promote", evaluation="2").id


def test_a_model_is_evaluated_again_against_another_champion(ask: WorkOf) -> None:
    alone, against = ask("evaluate"), ask("evaluate", champion=CHAMPION)
    moved = ask("evaluate", champion={**CHAMPION, "revision": 2})
    assert len({alone.id, against.id, moved.id}) == 3
    assert against.parameters["champion"] == CHAMPION


def test_once_a_model_is_champion_its_evaluation_is_the_one_that_made_it_so(ask: WorkOf, store: Store) -> None:
    before = ask("evaluate", champion=CHAMPION)
    before.pin(store)
    itself = {**CHAMPION, "weights_digest": "candidates", "revision": 2}
    after = ask("evaluate", champion=itself)
    assert after.id == before.id
    assert after.parameters["champion"] == CHAMPION


def test_an_evaluation_depends_on_the_validation_only_where_a_person_has_to_approve_the_data(ask: WorkOf) -> None:
    before, other = ask("evaluate"), ask("evaluate", validation="2")
    assert other.id == before.id
    assert "validation" not in other.inputs
    first, second = (ask("evaluate", validation=digest, to_approve=1) for digest in "12")
    assert len({before.id, first.id, second.id}) == 3
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
    assert on_gpu.id != on_cpu.id
    assert on_gpu.parameters["device"] == "cuda"
    assert "device" not in on_cpu.parameters
    covered = {"dataset": "1", "world_size": 2}
    part = spec_part(load_spec(SPEC_PATH), "train")
    assert on_cpu.id == work_id("train", spec_part=part, code_version=on_cpu.code.version, inputs=covered)


def test_a_decision_that_only_the_store_has_is_made_again_in_a_restored_ledger(ask: WorkOf, store: Store) -> None:
    """A night was promoted between the backup of the database and that of the store."""
    ledger, first = Ledger(Settings.from_environment().database_url), ask("promote")
    entry = decide_on(ledger, 1, model="search_ranking")
    # Without its artifact, so that the next result replaces this one.
    missing = f"{store.root_uri}/manifests/sha256/11/{'1' * 64}.json"
    said = {"model": "search_ranking", "key": entry.key, "decision": entry.outcome, "action": entry.action}
    first.folder.create_result(replace(result("promote", **said), work_id=first.id, artifact_uri=missing))
    assert ask("promote").id == first.id
    said["key"] = "of a decision that is not in this ledger"
    first.folder.create_result(replace(result("promote", **said), work_id=first.id))
    assert ask("promote").id == ask("promote", nonce=entry.key).id != first.id


def test_overridden_thresholds_are_another_decision_and_travel_with_the_request(ask: WorkOf) -> None:
    plain, trained = ask("promote"), ask("promote", overrides={"train.epochs": 5})
    judged = ask("promote", overrides={"evaluate.confidence": 0.9})
    assert "overrides" not in plain.parameters
    # Another training is another model already, and so another decision.
    assert trained.id == plain.id
    assert trained.parameters["overrides"] == {"train.epochs": 5}
    assert judged.id != plain.id
    assert judged.parameters["overrides"] == {"evaluate.confidence": 0.9}


def test_the_spec_that_a_run_froze_is_the_spec_of_all_its_stages(ask: WorkOf, store: Store) -> None:
    spec = load_spec(SPEC_PATH)
    resolved = ResolvedRun({"spec_uri": store.put_json(freeze(spec)), "as_of": AS_OF.isoformat(), "force": "a1"})
    assert isinstance(resolved.spec, PipelineSpec)
    assert (resolved.spec, resolved.as_of, resolved.force) == (PipelineSpec.thaw(freeze(spec)), AS_OF, "a1")


def test_canary_stage_is_given_the_instant_from_which_its_decision_counts(ask: WorkOf) -> None:
    ledger = Ledger(Settings.from_environment().database_url)
    assert ask("canary").parameters["canary_since"] is None
    decide_on(ledger, 1, model="search_ranking")
    decide_on(ledger, 2, model="search_ranking", canary=True)
    canary = ledger.standing("search_ranking").canary
    assert canary is not None
    by_the_clock, simulated = ask("canary"), ask("canary", simulated=True)
    assert by_the_clock.parameters["canary_since"] == canary.since
    assert "simulated" not in by_the_clock.parameters
    # Where time is simulated, that of the night that made it counts, and the page says so.
    assert (simulated.parameters["canary_since"], simulated.parameters["simulated"]) == (canary.as_of.isoformat(), True)
    assert simulated.id != by_the_clock.id


def test_canary_stage_is_given_what_a_person_approved_about_the_canary(ask: WorkOf) -> None:
    ledger = Ledger(Settings.from_environment().database_url)
    assert ask("canary").parameters["canary_approved"] == []
    decide_on(ledger, 1, model="search_ranking")
    bound = Reason(gate="minimum", passed=False, severity="approve", words="mrr 0.1", numbers={"metric": "mrr", "bound": 0.2})
    request = decide_on(ledger, 2, "needs_approval", model="search_ranking", canary=True, reasons=[bound])
    answer_request(ledger, request, "approved", by="eve", words="eve said yes")
    found = {"gate": "minimum", "words": "mrr 0.1", "numbers": {"metric": "mrr", "bound": 0.2}, "by": "eve"}
    assert ask("canary").parameters["canary_approved"] == [found]


REFIT = ("seed: 17", "seed: 17\n  refit: validation")


def test_what_follows_a_refit_is_about_its_model_and_a_pipeline_without_one_is_as_before(ask: WorkOf) -> None:
    spec = parse_spec(SPEC_PATH.read_text(encoding="utf-8").replace(*REFIT, 1).encode())
    assert (needs_of("refit", spec)["model"], needs_of("evaluate", spec)["model"]) == ("train", "refit")
    assert ask("promote", change=REFIT).inputs["model"] == "file:///store/refit/1"
    assert ask("evaluate", change=REFIT).parameters["training_uri"].rsplit("/", 2)[1] == "refit"
    assert needs_of("evaluate", load_spec(SPEC_PATH))["model"] == "train"
    assert ask("train", change=REFIT).id == ask("train").id


def test_how_long_a_training_took_is_no_part_of_its_refit_and_counts_among_what_the_run_costs(ask: WorkOf) -> None:
    quick, slow = ask("refit", change=REFIT), ask("refit", change=REFIT, seconds=3600.0)
    assert (slow.id, slow.parameters["trained_seconds"]) == (quick.id, 3600.0)
    assert ask("refit", change=REFIT, best_epoch=2).id != quick.id
    processes, both = 2, 1.0 + TRAINED_SECONDS / 3600
    assert ask("promote", change=REFIT, seconds=3600.0).parameters["process_hours"] == pytest.approx(processes * both)
