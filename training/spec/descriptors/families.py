"""Model families: the registry, what a family says of itself, and classes of a user's own.

A family is a package with a light `family.py` (its `DESCRIPTOR`) and a `module.py` (its `FAMILY`): a folder of training/models/, or what an
entry point of the group `nightshift.families` names. DAG files come here, so a descriptor imports no library to train with.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from training.errors import shown, spec_error
from training.installation import MODEL_PACKAGES
from training.spec.descriptors.gates import GATES
from training.spec.descriptors.metrics import METRICS
from training.spec.descriptors.sources import SOURCES
from training.spec.registry import Registry
from training.spec.rules.rule_problems import Rule, Violation
from training.spec.scalar_types import Section

if TYPE_CHECKING:
    # The sections import this module.
    from training.spec.pipeline_spec import PipelineSpec

MODELS_FOLDER: Final = Path(__file__).resolve().parents[2] / "models"
NEURAL_ONLY: Final = (
    *("batch_size", "micro_batch_size", "parallel", "precision", "activation_checkpointing"),
    *("gradient_compression", "powersgd_rank", "replica_check_steps", "straggler_ratio"),
    *("optimizer", "momentum", "weight_decay", "schedule", "warmup_steps", "warmup_share"),
)
"""Keys of `train` that have no effect on a family that is not trained by gradient descent."""

_OWN_MODEL = re.compile(r"(?P<package>[A-Za-z_]\w*)(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyDescriptor:
    """What spec, placement and work ids have to know of a family. Its implementation is `module.py` in the same folder."""

    settings: type[Section]
    """Of `train.settings`."""
    tasks: tuple[str, ...]
    """Values of `evaluate.task` that it trains for."""
    libraries: tuple[str, ...]
    """Distributions that it trains with; the first one names the framework of a model's version."""
    distributed: bool
    """Whether it trains in more than one process."""
    needs: tuple[str, ...] = ()
    """Keys of `train` that must be given."""
    ignored_keys: tuple[str, ...] = ()
    """Keys of `train` that would have no effect."""
    uses_gpus: bool
    gpus_on_request: bool = False
    """Whether it uses GPUs only where `placement.gpus` is set; else wherever there are some."""
    uses_torch: bool
    """Whether training it needs torch. Without, one process that trains it on a CPU does not import torch; several meet by torch's gloo."""
    weighted_tasks: tuple[str, ...] = ()
    """Tasks of which its loss counts rows by their weights (`data.weight`, `train.class_weight`)."""
    takes_missing_numbers: bool = True
    """Whether a cell of its input may be NaN; if not, `prepare` refuses one, and the training would too."""
    kept_row_bytes: int = 0
    """Memory that a training keeps of each training and validation row on a CPU, whatever its limit; 0: none that is known."""
    kept_start_bytes: int = 0
    """What it takes besides."""
    log_objectives: tuple[str, ...] = ()
    """Values of its setting `objective` that learn the logarithm of a label or of its mean: not that of a difference from another label."""
    rules: tuple[Rule, ...] = ()
    """What else `nightshift check` refuses."""
    settings_check: str = ""
    """`module:function` that yields, of a spec, what else is wrong with its settings. `nightshift check` calls it, and no DAG file: it may
    import the library."""
    yaml_settings: tuple[str, ...] = ()
    """Keys of its settings that the YAML alone may have: no trigger changes them, and no study searches them."""
    outside_format: str = ""
    """Format of models from outside that it takes (`training.spec.registration`); empty: none but a torch model's safetensors."""
    is_trained: bool = True
    """Whether a YAML may name it; if not, all of its models come from outside."""
    threads: int = 1
    """Of each process, unless `placement.cpus` says otherwise. Fixed: another number of threads can round otherwise."""

    @property
    def takes_other_settings(self) -> bool:
        """Whether its settings may have keys that only its library knows."""
        return self.settings.model_config.get("extra") == "allow"

    def __post_init__(self) -> None:
        # The registration of a model reads the first one, at the end of the run.
        if not self.libraries:
            raise ValueError("libraries is empty: the first one names the framework of a model's version")


def families_in(folder: Path) -> dict[str, str]:
    """Return name to package of the families of training/models/, sorted: its folders that have a `family.py`."""
    return {name: f"training.models.{name}" for name in sorted(path.parent.name for path in folder.glob("[!_]*/family.py"))}


FAMILIES: Final[Registry[FamilyDescriptor]] = Registry(
    group="nightshift.families",
    built_in=families_in(MODELS_FOLDER),
    descriptor_at="{}.family:DESCRIPTOR",
    implementation_at="{}.module:FAMILY",
    fits=lambda found: isinstance(found, FamilyDescriptor),
    code="model.descriptor",
    hint="assign DESCRIPTOR = training.spec.descriptors.families.FamilyDescriptor(...)",
)
REGISTRIES: Final = (FAMILIES, METRICS, SOURCES, GATES)
"""Of all that a spec can name."""


def trained_families() -> Mapping[str, FamilyDescriptor]:
    """Return the families that `train.model` may name besides classes of allowed packages, sorted; without those that are broken."""
    return {name: facts for name, facts in FAMILIES.usable().items() if facts.is_trained}


def library_violations(spec: PipelineSpec) -> list[Violation]:
    """Return what a family's library finds wrong with the settings of a spec; no DAG file may call this."""
    facts = FAMILIES.get(spec.train.model)
    if facts is None or not facts.settings_check:
        return []
    module, _, name = facts.settings_check.partition(":")
    return list(getattr(importlib.import_module(module), name)(spec))


def place_of(model: str) -> str:
    """Return the `module:attribute` of what fits and scores: of a family, or of a class, which is itself one.

    Raises:
        SpecError: `model.unknown`.
    """
    package = FAMILIES.package_of(model)
    if package is not None:
        return FAMILIES.implementation_at.format(package)
    if is_own(model):
        return model
    hint = f"known: {', '.join(trained_families())}"
    raise spec_error("train.model", "model.unknown", f"there is no model {shown(model)}", hint=hint)


def own_packages(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the packages whose classes a YAML may name: those of the variable, and those that entry points name."""
    named = tuple(name for part in MODEL_PACKAGES.text(environ).split(",") if (name := part.strip()))
    added = [place for registry in REGISTRIES for place in registry.added.values()]
    return tuple(dict.fromkeys([*named, *(place.partition(".")[0] for place in added)]))


def is_own(place: str) -> bool:
    """Return whether `place` is a `package.module:name` of an allowed package."""
    match = _OWN_MODEL.fullmatch(place)
    return match is not None and match["package"] in own_packages()


def is_allowed(model: str) -> bool:
    """Return whether `model` is a known family, or a `package.module:Class` of an allowed package."""
    return FAMILIES.package_of(model) is not None or is_own(model)
