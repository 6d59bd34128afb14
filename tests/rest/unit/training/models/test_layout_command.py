"""`nightshift layout`: the plan in words and as JSON, the exit codes, and the choice of `parallel: auto` in a gang.

Processes where a class of a user's is loaded, which would stay in this one, and where two ranks have to agree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.commands import command
from tests.unit.training.engine.parallel.ranks import run_ranks
from training.engine.parallel.gang import Gang
from training.models import training_plan
from training.models.ranker.module import FAMILY
from training.models.training_plan import chosen_layout, planned_features
from training.spec import load_spec, parse_spec
from training.spec.layout import Layout

main = command("layout")

PIPELINES = Path(__file__).resolve().parents[5] / "dags" / "pipelines"
RANKING = PIPELINES / "search_ranking.yaml"
SMALL = [f"--cardinality={name}=500" for name in ("user_id", "query_id", "item_id", "category_id", "position")]


LANGUAGE = """
import torch
from torch import nn

from training.models.torch_family import TorchFamily

WIDTH = 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, states):
        return states + self.down(torch.relu(self.up(self.norm(states))))


class Net(nn.Module):
    def __init__(self, features, depth):
        super().__init__()
        self.first = nn.Linear(sum(feature["dtype"] == "float32" for feature in features), WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, batch):
        states = self.first(batch["features_float"])
        for block in self.blocks:
            states = block(states)
        return self.last(states).squeeze(1)


class Deep(TorchFamily):
    link = "sigmoid"

    def build(self, architecture):
        return Net(architecture["features"], architecture["settings"]["depth"])

    def loss(self, module, batch):
        return nn.functional.binary_cross_entropy_with_logits(module(batch), batch["label"], reduction="sum")


class Broken(Deep):
    def loss(self, module, batch):
        raise ValueError("no rows today")
"""
OWN = ["model: boosted_trees", "model: OWN_MODEL"], ["settings: {max_depth: 3}", "settings: {depth: 8}"]
BLOCK_BYTES = 4 * (2 * 256 + 256 * 1024 + 1024 + 1024 * 256 + 256)


@pytest.fixture
def own_spec(tmp_path: Path) -> Callable[..., Path]:
    """Write a spec of a class of one's own, and its package beside it."""
    package = tmp_path / "site" / "shop_nets"
    package.mkdir(parents=True)
    (package / "deep.py").write_text(LANGUAGE)

    def write(model: str = "shop_nets.deep:Deep", **keys: str) -> Path:
        text = (PIPELINES.parents[1] / "docs/examples/cancelled_orders/cancelled_orders.yaml").read_text(encoding="utf-8")
        more = "".join(f"  {name}: {value}\n" for name, value in keys.items())
        for old, new in (*OWN, ["  epochs: 60\n", f"  epochs: 60\n{more}"], ["OWN_MODEL", model]):
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "cancelled_orders.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def layout_command(spec: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as `nightshift layout` does, with the package of `own_spec`."""
    checkout = PIPELINES.parents[1]
    folders = [str(folder) for folder in (checkout, checkout / "plugins", spec.parent / "site")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "NIGHTSHIFT_MODEL_PACKAGES": "shop_nets"}
    command = [sys.executable, "-m", "nightshift.console", "layout", str(spec), *arguments]
    return subprocess.run(command, env=environ, cwd=spec.parent, capture_output=True, text=True, timeout=300, check=False)


def test_class_of_ones_own_is_planned_by_the_command_without_a_dataset(own_spec: Callable[..., Path]) -> None:
    ended = layout_command(own_spec(), "--devices", "16xT4", "--per-node", "4", "--memory", "2GiB", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["devices"] == {"kind": "T4", "count": 16, "per_node": 4}
    assert found["usable_bytes"] == int(2 * 1024**3 * 0.9)
    assert found["parameters"] == 8 * BLOCK_BYTES // 4 + (4 * 256 + 256) + 257
    assert found["layout"] == {"data": 16}
    assert found["memory_bytes"]["parameters"] == found["parameters"] * 4
    assert found["assumed"][0].startswith("forward pass in fp32"), "precision auto on a T4, which has no bf16"


def test_little_memory_divides_a_class_of_ones_own_and_says_what_was_rejected(own_spec: Callable[..., Path]) -> None:
    ended = layout_command(own_spec(batch_size="64"), "--devices", "4xcpu", "--memory", "50MiB", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["layout"] == {"shard": 4}
    assert [rejected["layout"] for rejected in found["rejected"]] == [{"data": 4}]
    assert {one["kind"] for one in found["sent"]} == {"all-gather", "reduce-scatter"}


def test_layout_of_the_spec_itself_is_judged_beside_the_planned_one(own_spec: Callable[..., Path]) -> None:
    spec = own_spec(batch_size="64", parallel="{shard: 2}", placement="{nodes: 1, processes_per_node: 4}")
    ended = layout_command(spec, "--devices", "4xcpu")
    assert ended.returncode == 0, ended.stderr
    assert "layout    data 4 x shard 1" in ended.stdout
    assert "the spec's own layout, data 2 x shard 2: fits, " in ended.stdout
    assert "the spec's own layout" not in layout_command(spec, "--devices", "2xcpu").stdout, "it is of other processes"


def test_class_that_fails_is_named_with_its_own_error(own_spec: Callable[..., Path]) -> None:
    ended = layout_command(own_spec("shop_nets.deep:Broken"), "--devices", "2xcpu")
    assert (ended.returncode, ended.stdout) == (64, "")
    assert "[layout.model]" in ended.stderr
    assert "no rows today" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_option_for_groups_is_refused_for_a_spec_without(own_spec: Callable[..., Path]) -> None:
    ended = layout_command(own_spec(), "--devices", "2xcpu", "--group-rows", "8")
    assert (ended.returncode, ended.stdout) == (64, "")
    assert "[layout.group_rows] --group-rows: the spec has no data.group" in ended.stderr


def test_rows_of_a_group_are_among_what_is_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RANKING), "--devices", "2xcpu", "--json", "--group-rows=64", *SMALL]) == 0
    assert "a group has 64 rows (--group-rows NUMBER)" in json.loads(capsys.readouterr().out)["assumed"]


def test_unknown_option_ends_as_wrong_usage() -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(RANKING), "--device", "2xcpu", "--gpus", "3"])
    assert ended.value.code == 2


def test_plan_names_layout_memory_and_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RANKING), "--devices", "2xcpu"]) == 0
    text = capsys.readouterr().out
    assert "layout    data 2 x shard 1" in text
    assert "memory per process" in text
    assert "1,000,001 ids each, as many as the transform category allows" in text
    assert "a group has 16 rows" in text


def test_numbers_of_ids_make_the_planned_model_smaller(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RANKING), "--devices", "2xcpu", "--json", *SMALL]) == 0
    small = json.loads(capsys.readouterr().out)
    assert small["fits"]
    assert small["parameters"] < 100_000


def test_model_without_a_layout_that_fits_exits_as_a_wrong_spec(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RANKING), "--devices", "1xcpu", "--memory", "64MiB", "--json"]) == 64
    found = json.loads(capsys.readouterr().out)
    assert not found["fits"]
    assert found["memory_bytes"]["parameters"] > found["usable_bytes"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["flight_delay.yaml", "--devices", "2xcpu"], "layout.family"),
        (["search_ranking.yaml", "--devices", "2xabacus"], "layout.devices"),
        (["search_ranking.yaml", "--devices", "2xcpu", "--memory", "1MiB"], "layout.devices"),
        (["search_ranking.yaml", "--devices", "2xcpu", "--cardinality", "price=3"], "layout.cardinality"),
        (["search_ranking.yaml", "--devices", "2xcpu", "--cardinality", "user_id"], "layout.cardinality"),
        (["search_ranking.yaml", "--devices", "2xcpu", "--cardinality", "user_id=0"], "layout.cardinality"),
        (["search_ranking.yaml", "--devices", "2xcpu", "--memory", "much"], "layout.devices"),
        (["search_ranking.yaml", "--devices", "2xcpu", "--per-node", "0"], "layout.devices"),
        (["search_ranking.yaml", "--devices", "12xcpu", "--per-node", "5"], "layout.devices"),
        (["search_ranking.yaml", "--devices", "2xcpu", "--group-rows", "0"], "layout.group_rows"),
        (["no_such.yaml", "--devices", "2xcpu"], "spec.unreadable"),
    ],
)
def test_wrong_argument_is_refused_with_its_code(capsys: pytest.CaptureFixture[str], arguments: list[str], code: str) -> None:
    assert main([str(PIPELINES / arguments[0]), *arguments[1:]]) == 64
    assert f"[{code}]" in capsys.readouterr().err


def test_planned_inputs_of_a_text_are_its_buckets() -> None:
    text = (PIPELINES / "flight_delay.yaml").read_text(encoding="utf-8")
    changed = text.replace("origin: {transform: category}", "origin: {transform: text, buckets: 3}")
    features, _ = planned_features(parse_spec(changed.encode()), {})
    planned_texts = [(entry["name"], entry["dtype"]) for entry in features if entry["name"].startswith("origin")]
    assert planned_texts == [(f"origin.{bucket}", "float32") for bucket in range(3)]


@pytest.mark.parametrize(("memory", "expected"), [(8 << 30, Layout(data=2)), (40 << 20, Layout(shard=2))])
def test_auto_divides_the_model_only_where_a_process_has_too_little_memory(
    monkeypatch: pytest.MonkeyPatch, memory: int, expected: Layout
) -> None:
    text = RANKING.read_text(encoding="utf-8")
    spec = parse_spec(text.replace("  precision: auto", "  parallel: auto\n  precision: fp32").encode())
    features, _ = planned_features(spec, {name: 30_000 for name in ("user_id", "query_id", "item_id", "category_id", "position")})
    monkeypatch.setattr(training_plan, "_memories", lambda gang, processes: [memory * 4, memory])
    # A gang of one answers as rank 0 of two: the text goes to nobody.
    gang = Gang(0, 2, torch.device("cpu"))
    monkeypatch.setattr(Gang, "text_from_first", lambda self, text: text)
    assert chosen_layout(FAMILY, spec, gang, features, rows_of_a_group=16) == expected


def chosen_with_little_memory_on(gang: Gang, rank: int) -> dict[str, int]:
    text = RANKING.read_text(encoding="utf-8")
    spec = parse_spec(text.replace("  precision: auto", "  parallel: auto\n  precision: fp32").encode())
    features, _ = planned_features(spec, {name: 30_000 for name in ("user_id", "query_id", "item_id", "category_id", "position")})
    training_plan.memory_of_device = lambda gang, processes: 40 << 20 if gang.rank == rank else 8 << 30  # type: ignore[assignment]
    return dict(chosen_layout(FAMILY, spec, gang, features, rows_of_a_group=16).sizes())


@pytest.mark.parametrize(("rank", "expected"), [(1, {"shard": 2}), (5, {"data": 2})], ids=["one of them", "none"])
def test_both_processes_take_the_layout_that_fits_the_least_memory_of_any(rank: int, expected: dict[str, int], tmp_path: Path) -> None:
    assert run_ranks(chosen_with_little_memory_on, 2, tmp_path, rank) == [expected, expected]


def test_memory_of_a_cpu_is_the_smaller_of_machine_and_container_divided_by_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(training_plan, "CGROUP_LIMITS", (str(tmp_path / "absent"), str(limit)))
    limit.write_text("max\n")
    machine = training_plan.memory_of_device(Gang(0, 2, torch.device("cpu")), 1)
    assert machine == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit.write_text(f"{machine // 4}\n")
    assert training_plan.memory_of_device(Gang(0, 2, torch.device("cpu")), 2) == machine // 4 // 2


def test_layout_that_the_spec_names_is_not_planned() -> None:
    text = RANKING.read_text(encoding="utf-8")
    spec = parse_spec(text.replace("  precision: auto", "  parallel: {shard: 2}\n  precision: fp32").encode())
    assert chosen_layout(FAMILY, spec, Gang(0, 2, torch.device("cpu")), []) == Layout(shard=2)
    assert chosen_layout(FAMILY, load_spec(RANKING), Gang(0, 2, torch.device("cpu")), []) == Layout(data=2)
