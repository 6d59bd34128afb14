"""What the template has looked up for all of its forks, and when it is replaced."""

import importlib.metadata
import os
import site
from pathlib import Path
from typing import NoReturn

import pytest

from training.runtime.template import LIBRARIES, libraries, stamps_of_code
from training.spec import registry
from training.spec.descriptors.families import own_packages


def test_what_distributions_add_is_looked_for_once_by_the_template_and_by_no_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.installed.cache_clear()
    assert tuple(libraries()) == LIBRARIES

    def ask_again(**_named: str) -> NoReturn:
        raise AssertionError("a stage reads the entry points of all distributions")

    monkeypatch.setattr(importlib.metadata, "entry_points", ask_again)
    own_packages()


def test_a_distribution_installed_into_a_folder_of_the_path_replaces_the_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before = stamps_of_code()
    (tmp_path / "shop-1.dist-info").mkdir()
    assert stamps_of_code() != before


def test_a_distribution_installed_for_this_user_replaces_the_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path))
    before = stamps_of_code()
    (tmp_path / "shop-1.dist-info").mkdir()
    assert stamps_of_code() != before


def test_a_file_of_a_user_in_a_folder_of_the_path_leaves_the_template_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(tmp_path / "absent")]))
    before = stamps_of_code()
    (tmp_path / "written_by_a_stage.py").touch()
    assert stamps_of_code() == before
