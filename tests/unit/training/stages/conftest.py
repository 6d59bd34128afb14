"""Nights of the shop."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from devstack.shop import write_day
from tests.unit.training.stages.night_bench import AS_OF, LAST, SEARCHES, Night, load
from training.models.isolated_import import load_and_score


@pytest.fixture(scope="module")
def pristine_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shop")
    for back in range(6):
        write_day(root, LAST - timedelta(days=back), searches=SEARCHES)
    return root


@pytest.fixture
def shop(tmp_path: Path, pristine_shop: Path) -> Path:
    return Path(shutil.copytree(pristine_shop, tmp_path / "shop"))


@pytest.fixture
def night(tmp_path: Path, shop: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{tmp_path}/nightshift.db")
    return Night(tmp_path, load("search_ranking", {"SHOP_URI": shop.as_uri()}, "window: 30d", "window: 5d"), AS_OF)


@pytest.fixture
def loaded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models from outside are loaded in this process, which saves 1 or 2 s of CPU for each: for files that do not end it."""
    monkeypatch.setattr(
        "training.stages.external_model.load_apart", lambda artifact, cells, folder, _code_files: load_and_score(artifact, cells, folder)
    )
