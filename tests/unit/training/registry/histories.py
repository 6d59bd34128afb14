"""A model's history of random steps: nights, losses of MLflow, hands that move aliases; and what must hold after each one."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import mlflow
from mlflow.exceptions import MlflowException

from tests.unit.training.registry.tracking_databases import Tracking
from training.contracts import sha256_hex
from training.errors import DeniedError, NightshiftError
from training.registry.ledger.alias_findings import RecordedFinding, RecordedFindings
from training.registry.ledger.decisions import answer_request, former_champions, record_candidate, roll_back, settle_canary
from training.registry.ledger.ledger import AliasHolder, Ledger
from training.registry.ledger.reasons import Reason
from training.registry.ledger.retention import LedgerRoots
from training.registry.ledger.semver import Recipe, semantic_version
from training.registry.mlflow.alias_differences import ALIASES, KEPT
from training.registry.mlflow.mirror import differences, mirror
from training.registry.mlflow.repair import repair_models
from training.registry.mlflow.restoring import Origin, registration_now
from training.registry.mlflow.versions import WEIGHTS_TAG, register_candidate
from training.store import Store

ROOT: Final = Path(__file__).resolve().parents[4]
MODEL: Final = "orders"
MARK: Final = "mark.txt"
"""The file of a model whose content differs from that of all others: what tells the weights behind a version, whatever MLflow says."""
HOUR: Final = timedelta(hours=1)


class History:
    """One model, and what happened to it."""

    def __init__(self, seed: str, folder: Path, files: dict[str, bytes], tracking: Tracking) -> None:
        self.random, self.folder, self.files, self.tracking = random.Random(seed), folder, files, tracking  # noqa: S311 - a test's
        self.database = f"sqlite:///{folder}/ledger.db"
        self.store, self.ledger = Store(str(folder / "store")), Ledger(self.database)
        self.findings = RecordedFindings(self.database)
        self.now = datetime.now(UTC)
        self.deviating_since: dict[str, datetime] = {}
        """Weights that `champion` serves by another hand, to when a housekeeping first saw it."""
        self.own_alias: str | None = None
        """The number that a user's alias names."""
        self.log: list[str] = []

    # Steps.

    def night(self, outcome: str = "accepted", *, canary: bool = False) -> None:
        night(self.database, self.store, self.files, self.random.randrange(10**9), outcome, canary=canary)

    def rejected(self) -> None:
        self.night("rejected")

    def canary(self) -> None:
        self.night(canary=True)

    def asks(self) -> None:
        self.night("needs_approval")

    def answer(self) -> None:
        for request in self.ledger.open_requests(MODEL):
            answer_request(self.ledger, request, self.random.choice(["approved", "declined"]), by="ada", words="so")
        mirror(self.ledger, self.store, MODEL, now=lambda: self.now)

    def settle(self) -> None:
        standing = self.ledger.standing(MODEL)
        if standing.canary is not None:
            outcome = self.random.choice(["accepted", "rolled_back"])
            settle_canary(self.ledger, standing, outcome, reasons=[], evidence={}, decided_by="canary")
            mirror(self.ledger, self.store, MODEL, now=lambda: self.now)

    def force(self) -> None:
        """The newest candidate once more: its evaluation is found, and names the version that it had."""
        history = self.ledger.outline(MODEL)
        if history and history[-1].deleted_at is None:
            entry = self.ledger.decision(MODEL, history[-1].key)
            assert entry is not None
            uri = str(entry.evidence["holder"]["model_uri"])
            promote(self.ledger, self.store, uri, entry.weights_digest, self.random.choice(["accepted", "rejected"]))

    def back(self) -> None:
        roll_back(self.ledger, MODEL, by="ada", reason="late")
        mirror(self.ledger, self.store, MODEL, now=lambda: self.now)

    def race(self) -> None:
        """Two nights at the same moment, each a process."""
        numbers = [self.random.randrange(10**9) for _ in range(2)]
        parts = [self.database, str(self.folder), mlflow.get_tracking_uri()]
        command = [sys.executable, "-m", "tests.unit.training.registry.histories", *parts]
        started = [subprocess.Popen([*command, str(number)], cwd=ROOT) for number in numbers]
        assert [process.wait(240) for process in started] == [0, 0]

    def version_deleted(self) -> None:
        if (version := self._any_version()) is not None:
            client().delete_model_version(MODEL, version.version)
            if self.random.random() < 0.5:
                client().delete_logged_model(str(version.source).removeprefix("models:/"))
            self.own_alias = own_alias()

    def logged_model_deleted(self) -> None:
        """The version stays, and the alias on it: neither can be loaded."""
        if (version := self._any_version()) is not None:
            with expected_errors():
                client().delete_logged_model(str(version.source).removeprefix("models:/"))

    def model_deleted(self) -> None:
        with expected_errors():
            client().delete_registered_model(MODEL)
            self.own_alias = None

    def restored(self) -> None:
        if self.tracking.backups:
            self.tracking.begin(self.random.choice(self.tracking.backups))
            self.own_alias = own_alias()

    def other_server(self) -> None:
        self.tracking.replace()
        self.own_alias = None

    def moved_to_former(self) -> None:
        former = former_champions(self.ledger.outline(MODEL)) - {self.expected("champion")}
        self._move("champion", [version for version in versions() if version.tags.get(WEIGHTS_TAG) in former])

    def moved_to_any(self) -> None:
        former = former_champions(self.ledger.outline(MODEL))
        others = [version for version in versions() if version.tags.get(WEIGHTS_TAG) not in former]
        self._move(self.random.choice(ALIASES), others)

    def tag_copied(self) -> None:
        found = versions()
        if len(found) > 1:
            source, target = self.random.sample(found, 2)
            for name in (WEIGHTS_TAG, "lifecycle", "nightshift.decision"):
                client().set_model_version_tag(MODEL, target.version, name, source.tags.get(name, ""))

    def dangling(self) -> None:
        """MLflow left an alias on a deleted version."""
        self.tracking.execute("UPDATE registered_model_aliases SET version = 99999 WHERE name = ? AND alias = 'champion'", MODEL)

    def alias_deleted(self) -> None:
        with expected_errors():
            client().delete_registered_model_alias(MODEL, "champion")

    def users_alias(self) -> None:
        if (version := self._any_version()) is not None:
            client().set_registered_model_alias(MODEL, "shadow", version.version)
            self.own_alias = str(version.version)

    def retention(self) -> None:
        manifests = {entry.weights_digest: str(entry.evidence["holder"]["model_uri"]) for entry in self.ledger.history(MODEL)}
        roots = LedgerRoots(self.database, champions=1)
        needed = set(roots.uris())
        gone = [uri for uri in manifests.values() if uri not in needed]
        for uri in set(gone) - roots.release(gone):
            self.store.bucket.delete(self.store.bucket.key(uri))
        repair_models(self.store, self.ledger, forget_before=datetime(2020, 1, 1, tzinfo=UTC), now=lambda: self.now).check()

    def days_pass(self) -> None:
        self.now += timedelta(hours=self.random.choice([5, 13, 30]))

    # What holds.

    def housekeeping(self) -> list[RecordedFinding]:
        """Compare as housekeeping does, an hour later; return what was announced."""
        self.now += HOUR
        repair_models(self.store, self.ledger, forget_before=None, now=lambda: self.now).check()
        due = self.findings.to_announce()
        self.findings.note_announced([finding.number for finding in due], now=self.now)
        return due

    def check(self, announced: list[RecordedFinding]) -> None:
        """Assert what the registry promises, by the files behind the aliases."""
        right = [self._check_alias(alias, announced) for alias in ALIASES]
        listed = differences(self.ledger, self.store, MODEL, now=self.now)
        assert (listed == []) == all(right), [str(difference) for difference in listed]
        assert self.own_alias == own_alias(), "a user's alias is the user's"

    def _check_alias(self, alias: str, announced: list[RecordedFinding]) -> bool:
        expected, served = self.expected(alias), self.served(alias)
        about = [finding for finding in announced if finding.alias == alias]
        if alias == "champion" and (served is None or served == expected):
            self.deviating_since.clear()
        if served == expected:
            return True
        if served is None:
            assert self.are_deleted(expected), f"{alias} serves nothing, the ledger says {expected}"
            assert [finding.kind for finding in about] == ["missing"]
            return False
        assert alias == "champion", f"canary serves {served}, the ledger says {expected}"
        assert served in former_champions(self.ledger.outline(MODEL)), f"champion serves {served}, the ledger says {expected}"
        since = self.deviating_since.setdefault(served, self.now)
        assert self.now - since < KEPT
        assert [(finding.kind, finding.served) for finding in about if finding.ended_at is None] == [("former_champion", served)]
        return False

    def expected(self, alias: str) -> str | None:
        holder: AliasHolder | None = getattr(self.ledger.standing(MODEL), alias)
        return None if holder is None else holder.weights_digest

    def served(self, alias: str) -> str | None:
        """Return the weights that loading by an alias gives; None: it gives none."""
        try:
            client().get_model_version_by_alias(MODEL, alias)
        except MlflowException:
            return None
        path = mlflow.artifacts.download_artifacts(
            f"models:/{MODEL}@{alias}", dst_path=str(self.folder / f"served-{len(self.log)}-{alias}")
        )
        return sha256_hex((Path(path) / "data" / MARK).read_bytes())

    def are_deleted(self, weights: str | None) -> bool:
        entry = next(entry for entry in self.ledger.history(MODEL) if entry.weights_digest == weights)
        return self.store.bucket.find(self.store.bucket.key(str(entry.evidence["holder"]["model_uri"]))) is None

    def _any_version(self) -> Any | None:
        found = versions()
        return self.random.choice(found) if found else None

    def _move(self, alias: str, targets: list[Any]) -> None:
        if targets:
            client().set_registered_model_alias(MODEL, alias, self.random.choice(targets).version)


STEPS: Final[dict[Callable[[History], None], int]] = {
    History.night: 5,
    History.rejected: 3,
    History.canary: 3,
    History.asks: 2,
    History.answer: 2,
    History.settle: 2,
    History.force: 2,
    History.back: 2,
    History.race: 1,
    History.version_deleted: 3,
    History.logged_model_deleted: 2,
    History.model_deleted: 2,
    History.restored: 3,
    History.other_server: 2,
    History.moved_to_former: 3,
    History.moved_to_any: 3,
    History.tag_copied: 2,
    History.dangling: 1,
    History.alias_deleted: 1,
    History.users_alias: 1,
    History.retention: 2,
    History.days_pass: 4,
}
"""Step to how often it is drawn."""


def played(history: History, num_steps: int) -> None:
    """Play a history, and check it after each step and the housekeeping after it."""
    history.night()
    for _ in range(num_steps):
        (step,) = history.random.choices(list(STEPS), list(STEPS.values()))
        history.log.append(step.__name__)
        with expected_errors(NightshiftError):
            step(history)
        history.check(history.housekeeping())
        history.tracking.back_up()


def night(database: str, store: Store, files: dict[str, bytes], number: int, outcome: str, *, canary: bool = False) -> None:
    """Train weights that nobody has, evaluate them against the standing, and decide: the registry's part of a run."""
    mark = str(number)
    ledger = Ledger(database)
    measured = ledger.standing(MODEL).revision
    weights = sha256_hex(mark.encode())
    uri, manifest = store.manifests.put_files("model", {**files, MARK: mark.encode()}, {"weights_digest": weights})
    register_candidate(store, MODEL, manifest, inputs={"value": "double"}, run=None, tags={})
    promote(ledger, store, uri, weights, outcome, canary=canary, revision=measured)


def promote(
    ledger: Ledger, store: Store, uri: str, weights: str, outcome: str, *, canary: bool = False, revision: int | None = None
) -> None:
    """Decide about a candidate, as the stage `promote` does."""
    made = {"recipe_digest": "r", "framework": "xgboost", "snapshot_digest": "s", "code_version": "c"}
    recipe = Recipe(input_schema={"value": "double"}, output_schema={}, **made)
    evidence = {
        "weights_digest": weights,
        "model_uri": uri,
        "evaluation_digest": sha256_hex(f"{weights} {revision}".encode()),
        "revision": ledger.standing(MODEL).revision if revision is None else revision,
        "has_canary": canary,
        "input_schema": {"value": "double"},
        "pipeline": MODEL,
        "as_of": "2026-01-01T00:00:00+00:00",
    }
    hint = ledger.registrations(MODEL).get(weights)
    place = registration_now(store, MODEL, Origin.of(weights, evidence, model_uri=uri), hint)
    ledger.note_registration(MODEL, weights, place)
    holder = AliasHolder(
        version=place.number,
        semantic_version=semantic_version(MODEL, weights, recipe, ledger.database_url),
        weights_digest=weights,
        model_uri=uri,
        as_of=datetime(2026, 1, 1, tzinfo=UTC),
        bounds={},
        artifact_digest=place.artifact_digest,
    )
    reasons: list[Any] = [Reason(gate="minimum", passed=outcome == "accepted", words="so")]
    record_candidate(ledger, holder, model=MODEL, outcome=outcome, reasons=reasons, evidence=evidence, decided_by="night")
    mirror(ledger, store, MODEL)


def client() -> mlflow.MlflowClient:
    return mlflow.MlflowClient()


def versions() -> list[Any]:
    return list(client().search_model_versions(f"name = '{MODEL}'"))


def own_alias() -> str | None:
    """Return the number that the user's alias names in MLflow, None where it is not there."""
    try:
        return str(client().get_model_version_by_alias(MODEL, "shadow").version)
    except MlflowException:
        return None


@contextmanager
def expected_errors(*further: type[Exception]) -> Iterator[None]:
    """A step may be refused: nothing to roll back to, a model that is gone already, a decision that lost its race."""
    try:
        yield
    except (MlflowException, *further) as err:
        if isinstance(err, NightshiftError) and not isinstance(err, DeniedError):
            raise


if __name__ == "__main__":
    _, url, place, tracking_uri, drawn = sys.argv
    mlflow.set_tracking_uri(tracking_uri)
    mlflow.set_registry_uri(tracking_uri)
    model_files = {path.name: path.read_bytes() for path in (Path(place) / "model").iterdir()}
    # The other night may be faster.
    with expected_errors(DeniedError):
        night(url, Store(str(Path(place) / "store")), model_files, int(drawn), "accepted")
