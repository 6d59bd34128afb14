"""Numbers that the guide on data states are those of the code."""

from __future__ import annotations

import pytest

from training.data.features.classes import MAX_CLASSES
from training.data.features.fitting import DEFAULT_BUCKETS, DEFAULT_HASH_BUCKETS, DEFAULT_MAX_CATEGORIES
from training.data.features.text_ngrams import DEFAULT_TEXT_BUCKETS
from training.data.join.engines.duckdb_windows import BLOCK_ROWS
from training.runtime import stage_memory
from training.runtime.provenance import CHECKOUT
from training.sources import csv_reader, jsonl_reader, size_limits
from training.spec.rules.features import MAX_TEXT_BUCKETS
from training.spec.sections.drift import Drift
from training.stages import check_data
from training.validation.all_checks import DEFAULT_MEMORY, MAX_RUNS
from training.validation.checks.label_delay import WARN_SHARE
from training.validation.columns.histogram import MAX_BINS
from training.validation.columns.values import MAX_FREQUENT, MAX_HELD, MAX_TEXT
from training.validation.drift.within_snapshot import FREQUENT_VALUES
from training.validation.snapshot_view import CHUNK_ROWS

MIB = 1 << 20
GUIDE = (CHECKOUT / "docs" / "data.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "found", "expected"),
    [
        ("The header line has at most 1 MiB", csv_reader.MAX_HEADER_BYTES, MIB),
        ("One object per line in UTF-8, at most 16 MiB", jsonl_reader.MAX_LINE_BYTES, 16 * MIB),
        ("may take a quarter of the memory of the machine", size_limits.DEFAULT_SHARE, 0.25),
        ("in a pod: half of the pod's", stage_memory.DEFAULT_SHARE, 0.5),
        ("gets 40 % of it, at least 128 MiB", stage_memory.ENGINE_SHARE, 0.4),
        ("gets 40 % of it, at least 128 MiB", stage_memory.LEAST_ENGINE_BYTES, 128 * MIB),
        ("One block of whole keys, about a million rows", BLOCK_ROWS, MIB),
        ("(`max_categories` limits them, 1,000,000 when absent)", DEFAULT_MAX_CATEGORIES, 1_000_000),
        ("128 buckets when absent, at most 1,024", DEFAULT_TEXT_BUCKETS, 128),
        ("128 buckets when absent, at most 1,024", MAX_TEXT_BUCKETS, 1024),
        ("Without the key, a share above 10 % causes a warning", WARN_SHARE, 0.1),
        ("Of a table with more than `--size` (256MiB)", check_data.SIZE, "256MiB"),
        ("otherwise batches of 65,536 rows", CHUNK_ROWS, 65_536),
        ("texts with more than 100,000 different values", MAX_HELD, 100_000),
        ("`validate.memory` (default 1 GiB;", DEFAULT_MEMORY, 1024 * MIB),
        ("up to 512 values of a text column", MAX_FREQUENT, 512),
        ("more than 512 different texts, or one of more than 200 characters", MAX_TEXT, 200),
        ("or its 20 most frequent texts", FREQUENT_VALUES, 20),
        ("the histograms' bins (up to 1,024)", MAX_BINS, 1024),
        ("shows the last 30 runs of each table", MAX_RUNS, 30),
        ("    action: warn                        # fail, approve, warn, off", Drift().action, "warn"),
        ("    against: [previous, champion]\n", Drift().against, ("previous", "champion")),
        ("    psi: 0.25\n    new_categories: 0.05\n", Drift().psi, 0.25),
        ("    psi: 0.25\n    new_categories: 0.05\n", Drift().new_categories, 0.05),
        ("0.2             # absent: reported and not judged", Drift().kolmogorov_smirnov, None),
        ("sorted by name, at most 1,000", MAX_CLASSES, 1000),
        ("one of several classes an integer from 0 to 999", MAX_CLASSES, 1000),
    ],
)
def test_number_of_the_guide_is_that_of_the_code(words: str, found: object, expected: object) -> None:
    assert words in GUIDE
    assert found == expected


def test_buckets_of_the_reference_are_those_of_the_code() -> None:
    words = (
        f"Of `hash` (absent: {DEFAULT_HASH_BUCKETS:,}), `bucket` (absent: {DEFAULT_BUCKETS}) and `text` (absent: {DEFAULT_TEXT_BUCKETS};"
    )
    assert words in (CHECKOUT / "docs" / "reference" / "spec.md").read_text(encoding="utf-8")
