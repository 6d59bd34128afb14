"""Rules of `prepare.features`: which keys a transform has, and which columns it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from training.spec.reader.yaml import Path
from training.spec.rules.rule_problems import Violation
from training.spec.rules.target_encoding import target_encoding_fits
from training.spec.sections.prepare import Feature, Prepare

MAX_TEXT_BUCKETS: Final = 1024
"""Each is a column of every shard: 4 bytes a row."""


def transform_fits(path: Path, feature: Feature, kind: str | None) -> Iterator[Violation]:
    """Yield a violation for each key that the feature's transform does not have, and for a column of a type that it does not take.

    Args:
        kind: type of the feature's column; None: there is no such column, which another rule reports.
    """
    if feature.buckets is not None and feature.transform not in ("hash", "bucket", "text"):
        message = f"the transform {feature.transform} has no buckets"
        yield Violation((*path, "buckets"), "field.conflict", message, "hash, bucket and text have")
    if feature.max_categories is not None and feature.transform not in ("category", "target_encode"):
        message = f"max_categories has no effect on the transform {feature.transform}"
        yield Violation((*path, "max_categories"), "field.conflict", message, "only category counts its values; leave it out")
    gives_ids = feature.transform in ("category", "hash", "bucket") or feature.form == "id"
    if feature.fill is not None and gives_ids:
        yield Violation((*path, "fill"), "field.conflict", f"the transform {feature.transform} gives missing values a separate id", "")
    yield from _top_fits(path, feature)
    yield from _parts_fit(path, feature, kind)
    yield from _text_fits(path, feature, kind)
    yield from target_encoding_fits(path, feature)


def _top_fits(path: Path, feature: Feature) -> Iterator[Violation]:
    if feature.top is None:
        return
    if feature.transform != "category":
        message = f"top has no effect on the transform {feature.transform}"
        yield Violation((*path, "top"), "field.conflict", message, "only category pools its rare values; leave it out")
    elif feature.max_categories is not None:
        yield Violation((*path, "top"), "field.conflict", "top pools the rare values, max_categories refuses them", "keep one of the two")


def _parts_fit(path: Path, feature: Feature, kind: str | None) -> Iterator[Violation]:
    """Yield a violation for each key of the transform `datetime` that does not fit; `kind` is the column's type."""
    if feature.transform != "datetime":
        for key in ("parts", "form"):
            if getattr(feature, key):
                message = f"{key} has no effect on the transform {feature.transform}"
                yield Violation((*path, key), "field.conflict", message, "only datetime has parts; leave it out")
        return
    parts: Path = (*path, "parts")
    if not feature.parts:
        yield Violation(parts, "field.missing", "the transform datetime needs parts", "such as [hour, day_of_week]")
    twice = sorted({part for part in feature.parts if feature.parts.count(part) > 1})
    if twice:
        yield Violation(parts, "field.conflict", f"{twice[0]} occurs twice", "remove one")
    if kind is not None and kind not in ("timestamp", "date"):
        message = f"the transform datetime takes a timestamp or a date, the column has the type {kind}"
        yield Violation(path, "field.conflict", message, "correct its type, or derive a timestamp")
    of_the_clock = [part for part in feature.parts if part in ("hour", "minute_of_day")]
    if kind == "date" and of_the_clock:
        yield Violation(parts, "field.conflict", f"a date has no {of_the_clock[0]}", "leave it out, or use a timestamp")
    if feature.form == "cyclic" and "is_weekend" in feature.parts:
        yield Violation(parts, "field.conflict", "is_weekend has no place in a period", "leave it out, or use the form number")
    if feature.serve_as is not None:
        message = "serve_as cannot stand for an instant"
        yield Violation((*path, "serve_as"), "field.conflict", message, "derive the part as a number, and give that feature a serve_as")


def _text_fits(path: Path, feature: Feature, kind: str | None) -> Iterator[Violation]:
    """Yield a violation for each key of the transform `text` that does not fit; `kind` is the column's type."""
    if feature.transform != "text":
        for key in ("tokens", "ngrams", "lowercase", "scale"):
            if getattr(feature, key) is not None:
                message = f"{key} has no effect on the transform {feature.transform}"
                yield Violation((*path, key), "field.conflict", message, "only text has it; leave it out")
        return
    if kind is not None and kind != "string":
        message = f"the transform text takes a string, the column has the type {kind}"
        yield Violation(path, "field.conflict", message, "correct its type, or derive a string")
    if feature.buckets is not None and feature.buckets > MAX_TEXT_BUCKETS:
        message = f"must be at most {MAX_TEXT_BUCKETS:,} for text, whose buckets are inputs of the model; got {feature.buckets:,}"
        yield Violation((*path, "buckets"), "field.range", message, "use fewer")
    if feature.ngrams is not None and feature.ngrams[0] > feature.ngrams[1]:
        least, most = feature.ngrams
        yield Violation((*path, "ngrams"), "field.range", f"the smallest n ({least}) is above the largest ({most})", f"[{most}, {least}]")
    if feature.fill is not None:
        yield Violation((*path, "fill"), "field.conflict", "a missing text has no n-grams: its cells are 0", "leave it out")
    if feature.serve_as is not None:
        yield Violation((*path, "serve_as"), "field.conflict", "serve_as cannot stand for a text", "derive what the model may see of it")


def cells_are_distinct(prepare: Prepare) -> Iterator[Violation]:
    """Yield a violation for each part of a `datetime` whose name another feature has."""
    for name, feature in prepare.features.items():
        for part in feature.parts:
            cell = f"{name}.{part}"
            if cell in prepare.features:
                message = f"the part {part} of {name} is called {cell}, as another feature is"
                yield Violation(("prepare", "features", cell), "column.clash", message, "give the column another name")
