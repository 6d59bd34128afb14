"""The record of an evaluation, `metrics.json`: written once by the stages evaluate and canary, read by gates, pages and ledger.

A room of its own below `evaluation` and `registry`, which do not import each other. It imports neither numpy nor pandas.

In the file a number that is not finite is a word (`"nan"`, `"inf"`, `"-inf"`), here it is a float again: no gate takes it for a number.
Format 3 is written. Formats 1 and 2 lack measurements: what a file lacks is None, or empty, and gates that need it reject. Keys that this
version does not know are ignored at every level. Anything else is an error that names the place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StrictBool, StrictInt, ValidationError, model_validator

from training.contracts import JsonValue, canonical_json, json_number
from training.errors import DataError, shown

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


class Part(BaseModel):
    """A table of the file. A key that the file lacks has its default, and is not written either."""

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: object) -> object:
        """Take null for an absent key where a table or a list is expected."""
        if not isinstance(values, Mapping):
            return values
        tables = {name for name, field in cls.model_fields.items() if field.get_default(call_default_factory=True) is not None}
        return {name: value for name, value in values.items() if value is not None or name not in tables}

    def to_json(self, *names: str) -> dict[str, JsonValue]:
        """Return as JSON the keys that were given; of these the named ones, where any is named."""
        found: dict[str, JsonValue] = self.model_dump(mode="json", include=set(names) or None, exclude_unset=True)
        return found


class Blocks(Part):
    """The interval of a gain by blocks (`evaluation.bootstrap.blocks.BlockInterval`)."""

    low: Figure | None = None
    high: Figure | None = None
    clusters: str | None = None
    columns: str | None = None
    num_clusters: StrictInt | None = None
    num_blocks: StrictInt | None = None
    block_seconds: Figure | None = None
    automatic_seconds: Figure | None = None
    lag1: Figure | None = None
    bin_seconds: Figure | None = None
    too_few_blocks: StrictBool | None = None
    bounded: StrictBool | None = None


class Comparison(Part):
    """By how much the candidate is better (`evaluation.bootstrap.paired.Comparison`); positive is better for every metric."""

    gain: Figure | None = None
    low: Figure | None = None
    high: Figure | None = None
    probability: Figure | None = None
    num_units: StrictInt | None = None
    row_low: Figure | None = None
    row_high: Figure | None = None
    blocks: Blocks | None = None
    decided_by: str | None = None


class Alarm(Part):
    """Whether a canary is significantly worse (`evaluation.bootstrap.sequential.Alarm`)."""

    is_worse: StrictBool | None = None
    e_value: Figure | None = None
    required: Figure | None = None
    mean: Figure | None = None
    num_blocks: StrictInt | None = None
    clusters: str | None = None
    block_seconds: Figure | None = None
    required_blocks: StrictInt | None = None


class Candidate(Part):
    """What was measured: of a canary's record the canary."""

    weights_digest: str = ""
    model: str | None = None
    """Digest of the model's manifest."""
    bounds: Bounds = Field(default_factory=dict)


class Rival(Part):
    """The champion or the canary that it was measured against, as the ledger had it (`registry.ledger.AliasHolder`)."""

    version: str | None = None
    weights_digest: str = ""
    model_uri: str = ""
    as_of: str = ""
    bounds: Bounds = Field(default_factory=dict)
    semantic_version: str = ""
    since: str = ""
    decision_key: str = ""
    artifact_digest: str = ""
    revision: StrictInt = 0
    """Of the standing that it was read from."""


class Slice(Part):
    """The rows with one value of one column, or of each of two (`evaluation.slices.Slice`)."""

    columns: dict[str, str] = Field(default_factory=dict)
    support: StrictInt | None = None
    is_small: StrictBool | None = None
    candidate: Figure | None = None
    champion: Figure | None = None


class Treated(Part):
    """The rows with one value of a sensitive column (`evaluation.fairness.Treated`)."""

    value: str | None = None
    support: StrictInt | None = None
    is_small: StrictBool | None = None
    true_positive_rate: Figure | None = None
    calibration_error: Figure | None = None


class Fairness(Part):
    """One sensitive column (`evaluation.fairness.Fairness`)."""

    equal_opportunity_gap: Figure | None = None
    calibration_gap: Figure | None = None
    values: tuple[Treated, ...] = ()


class Latency(Part):
    """Of calls with one batch size, milliseconds."""

    p50_ms: Figure | None = None
    p95_ms: Figure | None = None
    p99_ms: Figure | None = None
    rows_per_second: Figure | None = None
    waited_share: Figure | None = None
    """Of the calls' time, waiting for a CPU."""


class Leakage(Part):
    """The feature that alone ranks the test labels best."""

    feature: str | None = None
    value: Figure | None = None


class Overlap(Part):
    """Which share of the test rows' entities the training rows have too."""

    entities: tuple[str, ...] = ()
    share: Figure | None = None
    num_test: StrictInt | None = None


class Drift(Part):
    """Of the predictions against the champion's."""

    psi: Figure | None = None


class Checks(Part):
    """What may be wrong with a result that looks good."""

    leakage: Leakage | None = None
    overlap: Overlap | None = None
    drift: Drift | None = None
    constant: StrictBool | None = None


class NaiveBaseline(Part):
    """One naive baseline."""

    name: str
    about: str | None = None
    coverage: Figure | None = None
    validation: Figure | None = None
    """Its primary metric on the validation rows."""
    metrics: Figures = Field(default_factory=dict)
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

    gain: str | None = None
    num_groups: StrictInt | None = None
    num_without_positive: StrictInt | None = None


class LabelCounts(Part):
    rows: StrictInt = 0
    unknown: StrictInt = 0
    """Without a known label."""


class UnknownLabels(LabelCounts):
    """Rows without a known label (`data.label_delay.unknown_labels`)."""

    first_unknown: str | None = None
    bounds: Bounds = Field(default_factory=dict)
    splits: dict[str, LabelCounts] = Field(default_factory=dict)
    days: dict[str, LabelCounts] = Field(default_factory=dict)


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
    rows_seen: dict[str, StrictInt] = Field(default_factory=dict)
    """`champion`, `canary`: how many test rows are left out because it was trained or chosen on them (`evaluation.rivals`)."""
    unknown_labels: UnknownLabels | None = None
    """None: every label of the dataset is known."""
    classes: tuple[str, ...] | None = None
    """Names of the label's classes; None where they have none."""
    metrics: Figures = Field(default_factory=dict)
    champion_metrics: Figures = Field(default_factory=dict)
    canary_metrics: Figures = Field(default_factory=dict)
    comparison: Comparison | None = None
    canary_comparison: Comparison | None = None
    ranking: Ranking | None = None
    slices: tuple[Slice, ...] = ()
    worst_slice: StrictInt | None = None
    """Its place in `slices`."""
    slice_gap: Figure | None = None
    fairness: dict[str, Fairness] = Field(default_factory=dict)
    """By sensitive column."""
    num_rows: StrictInt | None = None
    num_units: StrictInt | None = None
    """Groups, or else rows."""
    baselines: Baselines | None = None
    """None: not measured, as of a canary."""
    checks: Checks | None = None
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
