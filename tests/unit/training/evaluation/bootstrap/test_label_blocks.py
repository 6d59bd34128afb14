"""Blocks of a split before there is a model."""

from datetime import timedelta

import numpy as np

from training.evaluation.bootstrap.blocks import FEW_BLOCKS, Origins
from training.evaluation.bootstrap.label_blocks import label_blocks
from training.evaluation.rows import LabelledRows
from training.registry.gates.significance import BY_THE_GAIN, blocks_of_labels

HOUR = 3_600_000_000
DAY = timedelta(days=1)


def rows_of(days: int, labels: np.ndarray | None = None) -> LabelledRows:
    hours = np.arange(24 * days)
    noise = np.random.default_rng(1).normal(size=len(hours))
    return LabelledRows(labels=noise if labels is None else labels, groups=None, origins=Origins(microseconds=hours * HOUR, entities={}))


def words_of(rows: LabelledRows) -> tuple[bool, str]:
    found = label_blocks(rows, confidence=0.95, least=DAY)
    assert found is not None
    return blocks_of_labels(found, DAY)


def test_days_of_independent_labels_are_a_block_each() -> None:
    assert words_of(rows_of(14)) == (True, "14 blocks of 1d, 8 required")
    is_enough, words = words_of(rows_of(5))
    assert not is_enough
    assert words.startswith("too few blocks: 5 of 1d, 8 required, ")
    assert words.endswith("what helps is a longer data.split.test, evaluate.entities, a shorter evaluate.block")


def test_labels_that_depend_on_each_other_for_days_make_longer_blocks() -> None:
    slow = np.sin(np.arange(24 * 21) / 24 / 7 * 2 * np.pi)
    found = label_blocks(rows_of(21, slow), confidence=0.95, least=timedelta(days=1))
    assert found is not None
    assert found.too_few_blocks
    assert found.num_blocks < FEW_BLOCKS


def test_blocks_that_labels_alone_make_longer_say_that_the_gate_counts_by_the_gain() -> None:
    # The same rows, by a gain that does not depend on time.
    assert words_of(rows_of(21)) == (True, "21 blocks of 1d, 8 required")
    few = words_of(rows_of(21, np.sin(np.arange(24 * 21) / 24 / 7 * 2 * np.pi)))[1]
    assert "lag-1 autocorrelation of the labels " in few
    assert few.endswith(BY_THE_GAIN)


def test_one_row_has_no_blocks() -> None:
    assert label_blocks(LabelledRows(labels=np.ones(1), groups=None), confidence=0.95, least=timedelta(days=1)) is None
