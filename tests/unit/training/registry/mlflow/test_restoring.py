"""Where the weights of an alias come from, as the ledger says."""

from __future__ import annotations

from pathlib import Path

from tests.unit.training.registry.scenes import candidate
from training.registry.ledger.ledger import Ledger
from training.registry.mlflow.restoring import origin_of


def test_weights_whose_decision_is_not_in_the_ledger_have_the_instant_of_the_alias(tmp_path: Path) -> None:
    champion = candidate(1)
    found = origin_of(Ledger(f"sqlite:///{tmp_path}/ledger.db"), "m", champion)
    assert (found.as_of, found.model_uri, found.run_id, found.outputs) == (champion.as_of, champion.model_uri, None, ())
