"""`nightshift check --data` says before a night what would fail in its data."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from devstack.shop import day_path, write_day
from tests.commands import command
from training.contracts import ExitCode
from training.runtime.provenance import CHECKOUT
from training.sources.interface import ListedPart
from training.spec import PipelineSpec, parse_spec, resolve_uris
from training.stages import check_data
from training.stages.check_data import MIN_FILES

main = command("check")

PIPELINES = CHECKOUT / "dags" / "pipelines"
EXAMPLE = CHECKOUT / "docs" / "examples" / "cancelled_orders"
AS_OF = datetime(2026, 2, 1, 2, tzinfo=UTC)
LAST = date(2026, 1, 31)
DAYS = 12


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shop")
    for back in range(DAYS):
        write_day(root, LAST - timedelta(days=back), searches=150)
    return root


@pytest.fixture(autouse=True)
def suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(CHECKOUT / "expectations", tmp_path / "expectations"))
    (folder / "cancelled_orders").mkdir()
    shutil.copy(EXAMPLE / "orders.json", folder / "cancelled_orders")
    monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", str(folder))


@pytest.fixture
def shop(tmp_path: Path, pristine: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "shop"))


def spec_of(shop: Path, *replacement: str) -> PipelineSpec:
    text = (PIPELINES / "search_ranking.yaml").read_text().replace("window: 30d", f"window: {DAYS}d")
    if replacement:
        assert replacement[0] in text
        text = text.replace(*replacement)
    return resolve_uris(parse_spec(text.encode()), {"SHOP_URI": shop.as_uri()})


def checked(spec: PipelineSpec, *, size_bytes: int = 2**28) -> tuple[str, ExitCode]:
    lines: list[str] = []
    exit_code = check_data.check_data(spec, AS_OF, size_bytes=size_bytes, say=lines.append)
    return "\n".join(lines), exit_code


def test_sound_data_is_reported_with_its_rows_by_split(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DATABASE", "sqlite:///nowhere.db")
    text, exit_code = checked(spec_of(shop))
    assert os.environ["NIGHTSHIFT_DATABASE"] == "sqlite:///nowhere.db"
    assert not Path("nowhere.db").exists()
    assert exit_code == ExitCode.DONE, text
    assert f"clicks: {DAYS} files, " in text
    assert "ok    prepare: rows of train " in text
    assert "label clicked: mean 0." in text
    assert "  evaluate: by how the labels of the test split depend on each other, an interval of a gain has " in text


def test_of_a_large_table_some_files_of_the_whole_window_are_read(shop: Path) -> None:
    text, exit_code = checked(spec_of(shop), size_bytes=1)
    assert exit_code == ExitCode.DONE, text
    assert f"clicks: {MIN_FILES} files of {DAYS}, spread over the window" in text
    # What needs all files is not judged.
    assert "missing_days" not in text
    assert "volume.change" not in text


def test_a_sample_of_a_union_has_files_of_each_of_its_tables() -> None:
    parts: list[ListedPart] = [
        {"uri": f"file:///eu/{number:03d}", "size_bytes": 1000, "version": "1", "partition": None, "table": "eu"} for number in range(100)
    ]
    # The one file is in the middle of all.
    parts.append({"uri": "file:///eu/0405", "size_bytes": 1000, "version": "1", "partition": None, "table": "archive"})
    assert Counter(part["table"] for part in check_data.sample(parts, 10_000)) == {"eu": 9, "archive": 1}
    assert check_data.sample(parts, 101_000) == parts


def test_days_that_are_not_there_are_reported(shop: Path) -> None:
    day_path(shop, LAST).unlink()
    text, exit_code = checked(spec_of(shop))
    assert f"WARN  clicks: 1 of {DAYS} partitions are not there yet: 2026-01-31" in text
    assert "WARN  validate: [data.missing_days] clicks" in text
    assert exit_code == ExitCode.DONE


def test_a_wrong_type_is_reported_and_prepare_is_not_tried(shop: Path) -> None:
    text, exit_code = checked(spec_of(shop, "rating: {type: float}", "rating: {type: string}"))
    assert exit_code == ExitCode.BAD_DATA
    assert "FAIL  validate: [schema.type] clicks.rating: column's type: observed float, allowed string" in text
    assert "prepare was not tried" in text


def test_what_prepare_would_refuse_is_reported_with_its_code(shop: Path) -> None:
    transform = "category_id: {transform: category}"
    text, exit_code = checked(spec_of(shop, transform, "category_id: {transform: category, max_categories: 3}"))
    assert exit_code == ExitCode.BAD_DATA, text
    assert "FAIL  prepare: [" in text
    assert "category_id" in text.split("FAIL  prepare: ")[1]


def test_the_store_and_the_ledger_of_the_installation_are_not_touched(tmp_path: Path) -> None:
    home = tmp_path / "home"
    command = [sys.executable, "-m", "nightshift.console", "check", "--data", "--as-of", "2026-03-15", "cancelled_orders.yaml"]
    folder = tmp_path / "suites" / "cancelled_orders"
    folder.mkdir(parents=True)
    shutil.copy(EXAMPLE / "orders.json", folder)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'plugins'}",
        "NIGHTSHIFT_HOME": str(home),
        "NIGHTSHIFT_EXPECTATIONS": str(tmp_path / "suites"),
        "ORDERS_URI": (EXAMPLE / "data").as_uri(),
        "TMPDIR": str(tmp_path),
    }
    before = set(tmp_path.iterdir())
    done = subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok    prepare: rows of train " in done.stdout
    assert not home.exists()
    assert set(tmp_path.iterdir()) == before, "the scratch folder is removed"


@pytest.mark.parametrize("found", [ExitCode.DONE, ExitCode.BAD_DATA])
def test_options_reach_the_check_and_its_exit_code_is_that_of_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: ExitCode
) -> None:
    asked: list[tuple[str, datetime, int]] = []

    def check(spec: PipelineSpec, as_of: datetime, *, size_bytes: int, say: object) -> ExitCode:
        asked.append((spec.name, as_of, size_bytes))
        return found if spec.name == "cancelled_orders" else ExitCode.DONE

    monkeypatch.setattr(check_data, "check_data", check)
    monkeypatch.setenv("ORDERS_URI", tmp_path.as_uri())
    monkeypatch.setenv("SHOP_URI", tmp_path.as_uri())
    monkeypatch.setenv("ALERTS_URI", "https://example.com")
    files = [str(EXAMPLE / "cancelled_orders.yaml"), str(PIPELINES / "search_ranking.yaml")]
    assert main(["--data", "--as-of", "2026-03-15", "--size", "32MiB", *files]) == found
    # A day begins at midnight in the pipeline's time zone.
    assert sorted(asked) == [
        ("cancelled_orders", datetime(2026, 3, 14, 23, tzinfo=UTC), 32 * 2**20),
        ("search_ranking", datetime(2026, 3, 15, tzinfo=UTC), 32 * 2**20),
    ]


@pytest.mark.parametrize("size", ["3KiB", "much"])
def test_a_size_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], size: str) -> None:
    monkeypatch.setattr(check_data, "check_data", lambda *_, **__: pytest.fail("it was read"))
    assert main(["--data", "--size", size, str(EXAMPLE / "cancelled_orders.yaml")]) == 64
    assert capsys.readouterr().err == f"--size {size!r}: write a number and a unit, at least 16MiB: 256MiB\n"


def test_a_stage_that_fails_gives_the_exit_code_that_it_would_have(shop: Path) -> None:
    for back in range(DAYS):
        shutil.rmtree(day_path(shop, LAST - timedelta(days=back)).parent)
    text, exit_code = checked(spec_of(shop))
    assert "FAIL  ingest: [data.empty] table 'clicks' has no data files" in text
    assert exit_code == ExitCode.BAD_DATA


def test_without_data_the_files_alone_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_data, "check_data", lambda *_, **__: pytest.fail("no data was asked for"))
    assert main([str(EXAMPLE / "cancelled_orders.yaml")]) == 0


def test_without_data_the_suite_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NIGHTSHIFT_EXPECTATIONS", str(tmp_path / "nowhere"))
    assert main([str(EXAMPLE / "cancelled_orders.yaml")]) == 64
    assert "[suite.missing]" in capsys.readouterr().err


def test_a_source_without_a_location_is_an_error_of_its_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("ORDERS_URI", raising=False)
    assert main(["--data", str(EXAMPLE / "cancelled_orders.yaml")]) == 64
    assert "ORDERS_URI" in capsys.readouterr().err


def test_a_check_that_is_asked_to_end_leaves_no_copy_of_the_data(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    before = signal.getsignal(signal.SIGTERM)
    seen: list[int] = []

    def say(line: str) -> None:
        if "ingest:" in line:
            seen.append(len(list(scratch.iterdir())))
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as caught:
        check_data.check_data(spec_of(shop), AS_OF, size_bytes=2**28, say=say)
    assert (caught.value.code, seen) == (128 + signal.SIGTERM, [1])
    assert list(scratch.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_instant_that_has_not_come_is_refused_as_a_run_refuses_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORDERS_URI", "file:///nowhere")
    assert main(["--data", "--as-of", "2098-01-01", str(EXAMPLE / "cancelled_orders.yaml")]) == 64
    assert "as_of.future" in capsys.readouterr().err
