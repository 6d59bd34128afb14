"""Alerts about MLflow's aliases: what the comparison with the ledger found, by the settings of the model's pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nightshift.airflow_ext.alerts import announce
from nightshift.settings import Settings
from training.errors import SpecError
from training.spec import load_spec
from training.spec.pipeline_spec import Alerts

if TYPE_CHECKING:
    from training.registry.ledger.ledger import Entry


def announce_findings(settings: Settings, *, run: str, model: str | None = None, is_last: bool = False) -> list[str]:
    """Announce what is due, of one model or of all; return what no channel took.

    Args:
        is_last: what is returned becomes the error of a task, which is then its alert.

    Raises:
        UnavailableError: `database.unavailable`.
    """
    from training.registry.ledger.alias_findings import RecordedFindings

    ledger, findings = settings.ledger(), RecordedFindings(settings.database_url)
    left = []
    for finding in findings.to_announce():
        if model not in (None, finding.model):
            continue
        pipeline, alerts = alerts_of(ledger.newest_first(finding.model), settings)
        words = (
            finding.words if finding.ended_at is None else f"this was set right at {finding.ended_at:%Y-%m-%d %H:%M} UTC: {finding.words}"
        )
        event = {"event": "registry", "pipeline": pipeline, "run": run, "model": finding.model, "reason": words}
        is_taken = announce(event, alerts)
        if is_taken or is_last:
            findings.note_announced([finding.number], now=datetime.now(UTC))
        if not is_taken:
            left.append(words)
    return left


def alerts_of(newest_first: Iterable[Entry], settings: Settings) -> tuple[str, Alerts]:
    """Return the pipeline of a model's newest decision, and its alert settings; none where its YAML is missing or invalid."""
    pipeline = next((str(entry.evidence["pipeline"]) for entry in newest_first if "pipeline" in entry.evidence), "")
    try:
        return pipeline, load_spec(settings.pipelines_path / f"{pipeline}.yaml").alerts
    except SpecError:
        return pipeline, Alerts()
