"""Links from the page's facts to MLflow's pages of the run and of the registered version."""

from __future__ import annotations

from typing import TypedDict
from urllib.parse import quote


class Link(TypedDict):
    """A fact of the page that leads somewhere; without an address it is text."""

    text: str
    url: str | None


def mlflow_facts(tracking_uri: str, *, run_id: str | None, model: str, version: str) -> dict[str, Link]:
    """Return facts with links, as `render_report` takes them; without links where MLflow is not a server, as with `sqlite:///`.

    Args:
        tracking_uri: `MLFLOW_TRACKING_URI`. What only the cluster can resolve stays a link that only the cluster can follow.
        run_id: of the training; None where none was recorded.
        model: its name in the registry.
        version: its number there.
    """
    base = tracking_uri.rstrip("/") if tracking_uri.startswith(("http://", "https://")) else ""
    found: dict[str, Link] = {}
    if run_id:
        found["MLflow run"] = {"text": run_id, "url": f"{base}/#/runs/{quote(run_id, safe='')}" if base else None}
    place = f"{quote(model, safe='')}/versions/{quote(version, safe='')}"
    found["registered as"] = {"text": f"{model}, version {version}", "url": f"{base}/#/models/{place}" if base else None}
    return found
