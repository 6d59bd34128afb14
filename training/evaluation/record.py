"""The record of an evaluation, `metrics.json`: written once by the stages evaluate and canary, read by gates, pages and ledger.

A room of its own below `evaluation` and `registry`, which do not import each other. It imports neither numpy nor pandas.

In the file a number that is not finite is a word (`"nan"`, `"inf"`, `"-inf"`), here it is a float again: no gate takes it for a number.
What was not measured is None, or empty, and gates that need it reject. Keys that this version does not know are ignored at every level.
Anything else is an error that names the place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StrictBool, StrictInt, ValidationError

from training.contracts import JsonValue, canonical_json, json_number
from training.errors import DataError, shown
from training.spec.scalar_types import InstantText

FORMAT_VERSION: Final = 1
"""Of the files that this version writes, and the newest that it reads."""
FILE: Final = "metrics.json"
"""Of a manifest of kind `evaluation`."""
META_KEYS: Final = ("candidate", "champion", "metrics", "champion_metrics", "comparison", "baseline")
"""Keys that the manifest's meta repeats."""
MAX_PROBLEMS: Final = 5
"""Of a damaged file that its error names."""

_WORDS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _from_json(value: object) -> object:
    if isinstance(value, str):
        if value not in _WORDS:
            raise ValueError(f"{shown(value)} is neither a number nor one of {', '.join(_WORDS)}")
        return _WORDS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is not a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("an integer beyond all floats") from None


Figure = Annotated[float, BeforeValidator(_from_json), PlainSerializer(json_number, return_type=float | str)]
"""A measured number. Not finite: it was measured and has no value."""
Figures = dict[str, Figure]
Bounds = dict[str, tuple[str, str]]
"""Split to [start, end] of its rows, ISO 8601."""
Clusters = Literal["time", "entity", "group", "none"]


class Part(BaseModel):
    """A table of the file. A key that the file lacks has its default, and is not written either."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def to_json(self, *names: str) -> dict[str, JsonValue]:
        """Return as JSON the keys that were given; of these the named ones, where any is named."""
        found: dict[str, JsonValue] = self.model_dump(mode="json", include=set(names) or None, exclude_unset=True)
        return found


class Blocks(Part):
    """The interval of a gain by blocks, and how it was found (`evaluation.bootstrap.blocks`)."""

    low: Figure
    high: Figure
    clusters: Clusters
    """What the units were summed by; `entity` where entities say more than enough blocks do; `none` where there are too few blocks, no
    entities and no groups."""
    columns: str
    """Of the entities; empty for others."""
    num_clusters: StrictInt
    num_blocks: StrictInt
    """Of time, with units."""
    block_seconds: Figure
    automatic_seconds: Figure
    """The block length that the rows alone require, before `evaluate.block`."""
    lag1: Figure
    """Autocorrelation of neighbouring time bins' sums."""
    bin_seconds: Figure
    too_few_blocks: StrictBool
    bounded: StrictBool

    @property
    def is_of_one_instant(self) -> bool:
        """Whether entities stand for blocks of rows that all have one instant, which no block length can divide."""
        return self.block_seconds == 0 and self.clusters == "entity" and self.bounded


class Comparison(Part):
    """By how much the candidate is better (`evaluation.bootstrap.paired`); positive is better for every metric."""

    gain: Figure
    low: Figure
    high: Figure
    """Ends of the wider interval: the lower of both lows, the higher of both highs."""
    probability: Figure
    """Share of resamples in which the candidate is better."""
    num_units: StrictInt
    row_low: Figure
    row_high: Figure
    """Ends of the bootstrap's interval over units."""
    blocks: Blocks | None
    """None where the times of the rows are unknown."""
    decided_by: Literal["rows", "blocks"]
    """Which interval has the lower low."""


class Alarm(Part):
    """Whether a canary is significantly worse, by completed blocks (`evaluation.bootstrap.sequential`)."""

    is_worse: StrictBool
    e_value: Figure
    """Evidence against equal models, 1 at the start."""
    required: Figure
    """From which on it is an alarm, if the mean is below 0."""
    mean: Figure
    """Gain on the rows of completed blocks, positive where the canary is better."""
    num_blocks: StrictInt
    """That have rows."""
    clusters: Clusters
    block_seconds: Figure
    """0 for entities and groups."""
    required_blocks: StrictInt
    """Below, there is no evidence and no alarm."""


class Candidate(Part):
    """What was measured: of a canary's record the canary."""

    weights_digest: str
    model: str | None = None
    """Digest of the model's manifest."""
    bounds: Bounds = Field(default_factory=dict)


class Rival(Part):
    """The champion or the canary that it was measured against, as the ledger had it: also a parameter of the stage."""

    version: str
    weights_digest: str
    model_uri: str
    as_of: InstantText
    bounds: Bounds
    revision: StrictInt
    """Of the standing that it was read from."""


class Slice(Part):
    """The rows with one value of one column, or of each of two."""

    columns: dict[str, str]
    """Column to value."""
    support: StrictInt
    """Rows."""
    is_small: StrictBool
    candidate: Figure | None
    champion: Figure | None
    """Both None: the labels allow no value. NaN: a prediction of these rows is not finite, or the metric failed."""
    why_none: str = ""
    """Why the labels of these rows alone allow no value; empty where they do."""


class Treated(Part):
    """The rows with one value of a sensitive column."""

    value: str
    support: StrictInt
    is_small: StrictBool
    true_positive_rate: Figure | None
    """Share of the positive rows that are found at the threshold; None without a positive row, or for a task without positives."""
    calibration_error: Figure | None
    """None where a prediction is not finite, or the task has no probabilities."""
    num_positives: StrictInt | None = None
    """None for a task without positives."""


class FairnessGaps(Part):
    """One sensitive column. The gaps are between the largest and the smallest of values that are not small; None below two of them."""

    equal_opportunity_gap: Figure | None = None
    """Of true positive rates (Hardt et al., 2016)."""
    calibration_gap: Figure | None = None
    values: tuple[Treated, ...] = ()


class Latency(Part):
    """Of calls with one batch size, milliseconds."""

    p50_ms: Figure
    p95_ms: Figure
    p99_ms: Figure
    rows_per_second: Figure
    waited_share: Figure
    """Of the calls' time, waiting for a CPU."""


class Leakage(Part):
    """The feature that alone ranks the test labels best."""

    feature: str
    value: Figure


class Overlap(Part):
    """Which share of the test rows' entities the training rows have too."""

    entities: tuple[str, ...]
    share: Figure
    num_test: StrictInt


class PredictionDrift(Part):
    """Of the predictions against the champion's."""

    psi: Figure


class ResultChecks(Part):
    """What may be wrong with a result that looks good."""

    leakage: Leakage | None = None
    overlap: Overlap | None = None
    drift: PredictionDrift | None = None
    constant: StrictBool | None = None


class NaiveBaseline(Part):
    """One naive baseline."""

    name: str
    about: str
    """In words."""
    coverage: Figure
    """Share of the rows that its own rule has a value for; the others have the mean of the training labels."""
    validation: Figure
    """Its primary metric on the validation rows."""
    metrics: Figures
    """On the test rows."""


class Baselines(Part):
    """The naive baselines."""

    why_none: str | None = None
    best: str | None = None
    found: tuple[NaiveBaseline, ...] = ()
    comparison: Comparison | None = None
    """Of the candidate with the best one."""
    worse: tuple[str, ...] = ()
    """Metrics on which the candidate is worse than the best one."""
    warnings: tuple[str, ...] = ()

    @property
    def best_entry(self) -> NaiveBaseline | None:
        """The best baseline; None where there is none."""
        return next((entry for entry in self.found if entry.name == self.best), None)


class Ranking(Part):
    """Of a ranking: how NDCG counts, and which groups no metric counts."""

    gain: str
    num_groups: StrictInt
    num_without_positive: StrictInt


class LabelCounts(Part):
    rows: StrictInt
    unknown: StrictInt
    """Without a known label."""


class UnknownLabelCounts(LabelCounts):
    """Rows without a known label (`data.label_delay.unknown_labels`)."""

    first_unknown: str | None
    bounds: Bounds
    splits: dict[str, LabelCounts]
    days: dict[str, LabelCounts]


class EvaluationRecord(Part):
    """What one evaluation measured, and what it measured against what."""

    format_version: Annotated[StrictInt, Field(ge=1)] | None = None
    version: str | None = None
    """Of the candidate in the registry, when it was evaluated: a record that is reused may name a version that is gone."""
    logged_model: str = ""
    """Id of the logged model that is that version's source."""
    artifact_digest: str = ""
    candidate: Candidate | None = None
    champion: Rival | None = None
    canary: Rival | None = None
    dataset: str | None = None
    """Digest of the dataset's manifest."""
    baseline: str | None = None
    """`champion`: it scored the same rows; `no champion`; or why it cannot be compared with."""
    canary_baseline: str | None = None
    """Why the canary cannot be compared with; None: it scored the same rows, or there is none."""
    rows_seen: dict[str, StrictInt] = Field(default_factory=dict)
    """`champion`, `canary`: how many test rows are left out because it was trained or chosen on them (`evaluation.compared_models`)."""
    unknown_labels: UnknownLabelCounts | None = None
    """None: every label of the dataset is known."""
    classes: tuple[str, ...] | None = None
    """Names of the label's classes; None where they have none."""
    metrics: Figures = Field(default_factory=dict)
    without_value: dict[str, str] = Field(default_factory=dict)
    """Metrics that the labels of the rows alone give no value, to why."""
    champion_metrics: Figures = Field(default_factory=dict)
    canary_metrics: Figures = Field(default_factory=dict)
    comparison: Comparison | None = None
    canary_comparison: Comparison | None = None
    ranking: Ranking | None = None
    slices: tuple[Slice, ...] = ()
    worst_slice: StrictInt | None = None
    """Its place in `slices`."""
    slice_gap: Figure | None = None
    fairness: dict[str, FairnessGaps] = Field(default_factory=dict)
    """By sensitive column."""
    num_rows: StrictInt | None = None
    num_units: StrictInt | None = None
    """Groups, or else rows."""
    baselines: Baselines | None = None
    """None: not measured, as of a canary."""
    checks: ResultChecks | None = None
    importance: Figures | None = None
    latency: dict[str, Latency] | None = None
    """By batch size."""
    data_to_approve: tuple[str, ...] = ()
    """What `validate` found in the data that a person has to approve, a line for each check."""
    alarm: Alarm | None = None
    """Of a canary."""
    since: str | None = None
    """Of a canary: from which moment on rows count."""

    @classmethod
    def of(cls, values: object, *, where: str = FILE) -> Self:
        """Return the record of parsed JSON.

        Raises:
            DataError: `evaluation.newer`, `evaluation.damaged`.
        """
        version = values.get("format_version") if isinstance(values, Mapping) else None
        if isinstance(version, int) and version > FORMAT_VERSION:
            message = f"{where} has format {version}, this version reads up to {FORMAT_VERSION}"
            raise DataError("evaluation.newer", message, hint="upgrade Nightshift")
        try:
            return cls.model_validate(values)
        except ValidationError as err:
            raise _damaged(where, [_problem(error["loc"], error["msg"]) for error in err.errors(include_url=False)]) from err

    @classmethod
    def read(cls, data: bytes, *, where: str = FILE) -> Self:
        """Return the record of a file.

        Args:
            data: the file.
            where: names it in errors.

        Raises:
            DataError: `evaluation.newer`, `evaluation.damaged`.
        """
        try:
            values = json.loads(data)
        except (ValueError, RecursionError) as err:
            raise _damaged(where, [f"it is not readable JSON: {err}"]) from err
        return cls.of(values, where=where)

    @classmethod
    def of_parts(cls, *parts: EvaluationRecord) -> Self:
        """Return the record with the keys of all parts, each of which has some of them."""
        return cls(**{name: getattr(part, name) for part in parts for name in part.model_fields_set})

    def to_bytes(self) -> bytes:
        """Return the file."""
        return canonical_json(self.to_json())


def _problem(place: Sequence[int | str], words: str) -> str:
    named = ".".join(map(str, place)) or "the file"
    return f"{named}: {words.removeprefix('Value error, ')}"


def _damaged(where: str, problems: Sequence[str]) -> DataError:
    more = f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
    message = f"{where} is damaged: {'; '.join(problems[:MAX_PROBLEMS])}{more}"
    return DataError("evaluation.damaged", message, hint="evaluate again: clear the evaluate task")
