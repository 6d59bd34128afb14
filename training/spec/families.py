"""Which model families there are, and the settings that each takes in `train.settings`.

A family is a file of training/models/. This room reads the folder's listing and imports none of it: DAG files come here.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from training.spec.types import Section

MODELS_FOLDER: Final = Path(__file__).resolve().parent.parent / "models"
PACKAGES_VARIABLE: Final = "NIGHTSHIFT_MODEL_PACKAGES"

_OWN_MODEL = re.compile(r"(?P<package>[A-Za-z_]\w*)(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_DECLARES_FAMILY = re.compile(r"^FAMILY\b", re.MULTILINE)

_Share = Annotated[float, Field(gt=0, le=1)]
_Penalty = Annotated[float, Field(ge=0, le=1e6)]


class RankerSettings(Section):
    """Of `ranker`: embeddings of the ids beside the numbers, then a multi-layer perceptron."""

    embedding_dim: Annotated[int, Field(ge=1, le=1024)] = 16
    hidden: Annotated[tuple[Annotated[int, Field(ge=1, le=8192)], ...], Field(strict=False, max_length=16)] = (64, 32)
    """Width of each hidden layer."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    loss: Literal["listwise", "pairwise"] = "listwise"


class BoostedTreesSettings(Section):
    """Of `boosted_trees`: XGBoost's parameters by their own names, `colsample` for colsample_bytree."""

    max_depth: Annotated[int, Field(ge=1, le=20)] = 6
    min_child_weight: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    subsample: _Share = 1.0
    colsample: _Share = 1.0
    reg_lambda: _Penalty = 1.0
    reg_alpha: _Penalty = 0.0
    gamma: _Penalty = 0.0
    max_bin: Annotated[int, Field(ge=2, le=65536)] = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyFacts:
    """What the spec has to know of a family."""

    settings: type[Section]
    distributed: bool
    """Whether it trains in more than one process."""
    needs: tuple[str, ...] = ()
    """Keys of `train` that must be given."""
    ignored_keys: tuple[str, ...] = ()
    """Keys of `train` that would have no effect."""
    tasks: tuple[str, ...]
    """Values of `evaluate.task` that it trains for."""
    uses_gpus: bool
    uses_torch: bool
    """Whether training it needs torch; without, it trains in one process that does not import it."""
    threads: int = 1
    """Of each process, unless `placement.cpus` says otherwise. Fixed: another number of threads can round otherwise."""


NEURAL_ONLY: Final = ("batch_size", "warmup_steps", "weight_decay", "precision")

FAMILIES: Final[Mapping[str, FamilyFacts]] = {
    "ranker": FamilyFacts(
        settings=RankerSettings, distributed=True, needs=("batch_size",), tasks=("ranking",), uses_gpus=True, uses_torch=True
    ),
    "boosted_trees": FamilyFacts(
        settings=BoostedTreesSettings,
        distributed=False,
        ignored_keys=NEURAL_ONLY,
        tasks=("binary", "ranking", "multiclass", "regression"),
        uses_gpus=False,
        uses_torch=False,
        threads=2,
    ),
}


@functools.cache
def known_families(folder: Path = MODELS_FOLDER) -> tuple[str, ...]:
    """Return the names that `train.model` may have, sorted: files of training/models/ that assign `FAMILY`."""
    files = (path for path in folder.glob("*.py") if not path.stem.startswith("_"))
    return tuple(sorted(path.stem for path in files if _DECLARES_FAMILY.search(path.read_text(encoding="utf-8"))))


def own_packages(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the packages whose classes a YAML may name, as this installation allows them."""
    return tuple(name for part in environ.get(PACKAGES_VARIABLE, "").split(",") if (name := part.strip()))


def is_own(place: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Say whether `place` is a `package.module:name` of an allowed package."""
    match = _OWN_MODEL.fullmatch(place)
    return match is not None and match["package"] in own_packages(environ)


def is_allowed(model: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Say whether `model` is a known family, or a `package.module:Class` of an allowed package."""
    match = _OWN_MODEL.fullmatch(model)
    return model in known_families() if match is None else match["package"] in own_packages(environ)


def with_defaults(model: object, settings: dict[str, Any]) -> dict[str, Any]:
    """Return `settings` with the family's defaults filled in; unchanged where they are wrong, or the family is nobody's here."""
    facts = FAMILIES.get(model) if isinstance(model, str) else None
    if facts is None:
        return settings
    try:
        return facts.settings.model_validate(settings).model_dump(mode="json")
    except ValidationError:
        return settings
