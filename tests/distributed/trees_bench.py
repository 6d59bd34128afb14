"""The shop's searches ranked by trees in two processes."""

from __future__ import annotations

import re
from typing import Any

from tests.training_bench import Bench
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, parse_spec, resolve_uris

TRAIN = """
train:
  model: boosted_trees
  seed: 5
  epochs: {epochs}
  learning_rate: 0.1
  settings: {{max_depth: 4, subsample: 0.8, colsample: 0.8}}
  placement: {{nodes: 1, processes_per_node: {processes}, cpus: 2}}
  checkpoint: {{every: {every}, keep: 3}}

evaluate:"""


class TreesBench(Bench):
    """A store with one prepared dataset in it, and trainings of trees."""

    def spec_of(self, **train: Any) -> PipelineSpec:
        values = {"epochs": 100, "processes": 2, "every": "1s", **train}
        text = (CHECKOUT / "dags/pipelines/search_ranking.yaml").read_text(encoding="utf-8")
        for old, new in (("window: 30d", "window: 6d"), ("test: 2d", "test: 1d")):
            assert old in text, old
            text = text.replace(old, new)
        text, found = re.subn(r"\ntrain:\n.*?\nevaluate:", TRAIN.format(**values), text, flags=re.DOTALL)
        assert found == 1
        return resolve_uris(parse_spec(text.encode()), {"SHOP_URI": self.shop_uri})
