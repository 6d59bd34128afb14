"""Semantic versions of models: what a new version means for its users."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select

from training.contracts import JsonObject, canonical_json
from training.database.connect import connect, writing
from training.database.schema import ModelVersionRow
from training.registry.ledger.rows import locked_standing


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What a version was made of."""

    input_schema: Mapping[str, str]
    """Column of a raw frame to its type."""
    output_schema: JsonObject
    """The label, its rule and the task."""
    recipe_digest: str
    """Over code, features and settings."""
    framework: str
    """Family and library, `boosted_trees, xgboost 3.2.0`."""
    snapshot_digest: str
    code_version: str


def semantic_version(model: str, weights_digest: str, recipe: Recipe, database_url: str | None = None) -> str:
    """Return the version of these weights, giving them one if they have none: the same weights are one version.

    Against the newest version of the model: another input schema or label is a major one; other code, features or settings a minor one;
    the same recipe on new data a patch.

    Raises:
        UnavailableError: `database.unavailable`.
    """
    with writing(connect(database_url)) as session:
        locked_standing(session, model)
        versions = list(session.scalars(select(ModelVersionRow).where(ModelVersionRow.model == model).order_by(ModelVersionRow.id)))
        for version in versions:
            if version.weights_digest == weights_digest:
                return version.semantic_version
        text = _following(versions[-1], recipe) if versions else "1.0.0"
        session.add(
            ModelVersionRow(
                model=model,
                weights_digest=weights_digest,
                semantic_version=text,
                input_schema=dict(recipe.input_schema),
                output_schema=dict(recipe.output_schema),
                recipe_digest=recipe.recipe_digest,
                framework=recipe.framework,
                snapshot_digest=recipe.snapshot_digest,
                code_version=recipe.code_version,
                created_at=datetime.now(UTC),
            )
        )
    return text


def _following(newest: ModelVersionRow, recipe: Recipe) -> str:
    major, minor, patch = (int(part) for part in newest.semantic_version.split("."))
    # As JSON: a tuple is the list that comes back from the database.
    if [newest.input_schema, newest.output_schema] != json.loads(canonical_json([dict(recipe.input_schema), dict(recipe.output_schema)])):
        return f"{major + 1}.0.0"
    if newest.recipe_digest != recipe.recipe_digest:
        return f"{major}.{minor + 1}.0"
    return f"{major}.{minor}.{patch + 1}"
