"""A model from outside that a run judges instead of training one: what a trigger says of it, and the spec of such a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote

from pydantic import AfterValidator, Field

from training.errors import SpecError, shown, spec_error
from training.spec.descriptors.families import FAMILIES
from training.spec.pipeline_spec import PipelineSpec
from training.spec.scalar_types import DIGEST_RULE, ONE_LINE, FreeText, Line, Name, Section, refusal
from training.spec.schedule.instants import AS_OF_PATTERN, parse_as_of
from training.spec.sections.train import Train
from training.spec.uris import PLACE_HINT, place_fault

Format = Literal["safetensors", "xgboost_json", "onnx"]
PICKLES: Final = (".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".joblib", ".dill", ".sav", ".npy", ".npz")
"""Endings of files that Python's pickle reads, or may read: loading one runs what is written in it."""
SAFE_HINT: Final = "save it as safetensors, as XGBoost's JSON or UBJ (Booster.save_model), or as ONNX"
MAX_URI_CHARS: Final = 2048
_DIGEST: Final = re.compile(DIGEST_RULE, re.ASCII)


def _place(uri: str) -> str:
    fault = place_fault(uri)
    if fault:
        raise refusal("uri.forbidden", f"{shown(uri)} {fault}", hint=PLACE_HINT)
    return uri


def _no_pickle(uri: str) -> str:
    suffix = PurePosixPath(unquote(uri)).suffix.lower()
    if suffix in PICKLES:
        raise refusal("artifact.pickle", f"{shown(uri)} is a pickle by its name ({suffix}): loading one runs its code", hint=SAFE_HINT)
    return uri


def _digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise refusal("digest.invalid", f"expected a SHA-256, got {shown(text)}", hint="64 hex digits, as sha256sum prints them")
    return text


Place = Annotated[str, Field(min_length=1, max_length=MAX_URI_CHARS), AfterValidator(_place)]


class Registration(Section):
    """A model that was trained elsewhere. Its `metrics` are claims: recorded, never judged."""

    artifact_uri: Annotated[Place, AfterValidator(_no_pickle)] = Field(
        description="The file: `${NAME_URI}/model.ubj`, or in a bucket. The rules are those of a source."
    )
    format: Format = Field(description="`xgboost_json` is XGBoost's own JSON or UBJ.")
    transforms_uri: Place | None = Field(
        default=None, description="A `transforms.json`, with which the model was trained; null: that of the run's own `prepare`."
    )
    sha256: Annotated[str, AfterValidator(_digest)] | None = Field(default=None, description="Of the artifact; another file is refused.")
    name: Name | None = Field(default=None, description="Of the model: the pipeline's `promote.model`; another one is refused.")
    version: Line | None = Field(default=None, description="Its version outside; recorded.")
    metrics: dict[Annotated[str, Field(min_length=1, max_length=100), ONE_LINE], float] = Field(
        default_factory=dict, max_length=100, description="What is claimed of it; recorded, and never judged."
    )
    trained_until: Annotated[str, Field(max_length=40, pattern=AS_OF_PATTERN.removesuffix(r"(?!\n)"))] | None = Field(
        default=None,
        description="Newest event time of the rows it was trained on; refused where the test rows begin before. Null: not known.",
    )
    notes: Annotated[FreeText, Field(max_length=2000)] | None = Field(default=None, description="For those who read the ledger.")


def registered_spec(spec: PipelineSpec, registration: Registration) -> PipelineSpec:
    """Return the spec of a run that judges a model from outside: one process, no study, and the family that scores the format.

    Raises:
        SpecError: `artifact.family`, the pipeline's model takes no file of the format; `model.task`, the family does not score the task;
            `artifact.name`, the pipeline decides about another model; `as_of.invalid`, `trained_until` is no instant.
    """
    if registration.name not in (None, spec.promote.model):
        message = f"{spec.name} decides about the model {spec.promote.model}, and not about {registration.name}"
        raise _refused("artifact.name", message, "leave `name` out, or name the pipeline of that model", "registration.name")
    if registration.trained_until is not None:
        parse_as_of(registration.trained_until, spec.timezone)
    families = (name for name, facts in FAMILIES.usable().items() if facts.outside_format == registration.format)
    # Of the format safetensors it is the pipeline's own, which must be a torch family.
    family = next(families, spec.train.model)
    facts = FAMILIES.get(family)
    if registration.format == "safetensors" and facts is not None and not facts.uses_torch:
        message = f"safetensors are the tensors of the pipeline's own model, and {family} is not a torch model"
        raise _refused("artifact.family", message, f"a file for {family} has the format xgboost_json or onnx", "registration.format")
    if facts is not None and spec.evaluate.task not in facts.tasks:
        message = f"a model of the format {registration.format} cannot be judged by the task {spec.evaluate.task}"
        raise _refused("model.task", message, f"it can by {', '.join(facts.tasks)}", "registration.format")
    settings = spec.train.settings if family == spec.train.model else {}
    train = Train(model=family, seed=spec.train.seed, epochs=1, learning_rate=spec.train.learning_rate, settings=dict(settings))
    return spec.model_copy(update={"train": train, "tune": None})


def _refused(code: str, message: str, hint: str, field: str) -> SpecError:
    return spec_error("trigger", code, message, hint=hint, field=field)


def registered_words(registered: Mapping[str, Any]) -> str:
    """Return where a model came from, in words.

    Args:
        registered: a registration as JSON, with the digest of the file.
    """
    claims = ", ".join(f"{name} {value:g}" for name, value in sorted(registered.get("metrics", {}).items()))
    version = f", version {registered['version']}" if "version" in registered else ""
    source = f"{registered['artifact_uri']} ({registered['format']}, SHA-256 {str(registered['sha256'])[:12]})"
    claimed = f"; claimed, and not judged: {claims}" if claims else ""
    rows = (
        f", trained on rows until {registered['trained_until']}" if "trained_until" in registered else ", on rows that are not known here"
    )
    return f"trained elsewhere: {source}{version}{rows}{claimed}"
