"""Where a stage's imports begin. The one place that knows what is imported by a name in the spec, which no syntax tree shows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from training.code.closure import Code, Sources, closure
from training.code.imports import ImportsCache
from training.spec.descriptors.families import FAMILIES, is_allowed, is_own, place_of
from training.spec.descriptors.gates import GATES
from training.spec.descriptors.metrics import DESCRIPTORS, METRICS
from training.spec.descriptors.sources import SOURCES
from training.spec.pipeline_spec import PipelineSpec
from training.spec.sections.evaluation import BUILT_IN_GATES
from training.stage_table import TABLE, Named


def stage_code(
    stage: str, spec: PipelineSpec, *, families: Iterable[str] = (), cache: Path | None = None, sources: Sources | None = None
) -> Code:
    """Return what stands for the code of a stage's work: the digest of each file that it imports or reads.

    Args:
        stage: one of `ALL_STAGES`.
        spec: names the model's family and the metrics of the user's own.
        families: of other models that the stage loads: champion and canary.
        cache: file for what is known of unchanged files.
        sources: where training/ and users' packages are; absent: those of this process.

    Raises:
        SpecError: `code.missing`, `code.syntax`.
    """
    return closure(code_roots(stage, spec, families), sources=sources, cache=ImportsCache(cache))


def code_roots(stage: str, spec: PipelineSpec, families: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the modules at which the closure of a stage begins, sorted.

    A family of `families` that this installation does not have is left out: the stage reports it if it loads that model.
    """
    roots, named = {f"training.stages.{stage}", *_read_with(spec)}, TABLE[stage].imports
    if Named.SOURCES in named:
        roots |= {f"training.sources.kinds.{kind}" for kind in SOURCES.built_in}
    if Named.FAMILY in named:
        roots.add(place_of(spec.train.model).partition(":")[0])
    if Named.OTHER_FAMILIES in named:
        roots |= {place_of(family).partition(":")[0] for family in families if is_allowed(family)}
    if Named.METRICS in named:
        roots |= {place.partition(":")[0] for place in spec.evaluate.metrics.values() if is_own(place)}
        roots |= {f"training.evaluation.metrics.{descriptor.module}" for descriptor in DESCRIPTORS.values()}
        roots = roots.union(*map(METRICS.modules_of, _named_metrics(spec)))
    if Named.GATES in named:
        roots |= {f"training.registry.gates.{gate.module}" for gate in BUILT_IN_GATES.values()}
        roots = roots.union(*map(GATES.modules_of, spec.evaluate.gates))
    return tuple(sorted(roots))


def _named_metrics(spec: PipelineSpec) -> set[str]:
    """Return the names of the metrics that the spec names, without their cuts, and without functions of its own."""
    rules = spec.evaluate
    named = {rules.primary, *rules.minimum, *rules.maximum} | ({spec.tune.objective} if spec.tune is not None else set())
    return {name.partition("@")[0] for name in named - set(rules.metrics)}


def _read_with(spec: PipelineSpec) -> set[str]:
    """Return the modules that reading the spec may import by name: descriptors of families, and its kinds of sources.

    All of training/models/, as all of training/spec/: a spec with another family shares the work of the stages before the training.
    """
    families = {*FAMILIES.built_in, spec.train.model}
    packages = {package for name in families if (package := FAMILIES.package_of(name)) is not None}
    return {f"{package}.family" for package in packages}.union(*(SOURCES.modules_of(table.kind) for _, table in spec.data.tables()))
