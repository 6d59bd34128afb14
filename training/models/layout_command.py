"""Says which layout a pipeline's training needs on some devices, without having them.

    nightshift layout SPEC --devices 32xA100-80GB

The model is built without memory; nothing is trained, and no dataset is read. Exit code 0, or 64 where the file is wrong or no layout fits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from training.command_line import describe
from training.contracts import ExitCode
from training.errors import SpecError, shown, spec_error
from training.spec.reader.loader import load_spec
from training.spec.scalar_types import parse_size
from training.spec.sections.train import Parallel


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    text = "Says which layout a pipeline's training needs: memory per process, bytes sent, expected time of a step."
    describe(parser, _plan, "nightshift layout dags/pipelines/search_ranking.yaml --devices 8xA100-80GB", text)
    parser.add_argument("spec", metavar="SPEC", help="a pipeline's YAML file")
    parser.add_argument("--devices", required=True, metavar="COUNTxKIND", help="32xA100-80GB; see docs/large-models.md for the kinds")
    parser.add_argument("--per-node", type=int, default=8, metavar="NUMBER", help="devices of a node (8)")
    parser.add_argument("--memory", metavar="SIZE", help="memory of a device in place of the table's: 16GiB")
    parser.add_argument("--cardinality", action="append", default=[], metavar="NAME=NUMBER", help="ids of a feature, in place of its limit")
    parser.add_argument("--group-rows", type=int, metavar="NUMBER", help="mean rows of a group (16)")
    parser.add_argument("--json", action="store_true", help="for machines: sizes in bytes, times in seconds")


def _plan(options: argparse.Namespace) -> int:
    # torch is imported for a plan, not for --help.
    from training.large.planning.devices import parse_devices
    from training.large.planning.report import json_of, text_of
    from training.models.base import load_family
    from training.models.torch_family import TorchFamily
    from training.models.training_plan import judgement, plan_of, planned_features

    try:
        memory = None if options.memory is None else _size(options.memory)
        devices = parse_devices(options.devices, per_node=options.per_node, memory_bytes=memory)
        spec = load_spec(options.spec)
        features, assumed = planned_features(spec, _cardinalities(options.cardinality))
        family = load_family(spec.train.model)
        if not isinstance(family, TorchFamily):
            message = f"{spec.train.model} is not a torch family: it has no layout"
            raise spec_error("train.model", "layout.family", message, hint="use a torch family", field="train.model")
        rows_of_a_group = _group_rows(options.group_rows, has_groups=spec.data.group is not None)
        found = plan_of(family, spec, features, devices, rows_of_a_group=rows_of_a_group)
    except SpecError as err:
        sys.stderr.write(f"{err}\n")
        return int(ExitCode.BAD_SPEC)
    if spec.data.group is not None:
        assumed.append(f"a group has {options.group_rows or 16} rows (--group-rows NUMBER)")
    if options.json:
        sys.stdout.write(json.dumps(json_of(found, assumed=assumed), indent=2) + "\n")
    else:
        sys.stdout.write(text_of(found, assumed=assumed))
        if isinstance(spec.train.parallel, Parallel):
            own = spec.train.layout_for(spec.train.placement.world_size)
            if own.world_size == devices.count:
                sys.stdout.write(f"\nthe spec's own layout, {judgement(found, own)}\n")
    return int(ExitCode.DONE if found.fits else ExitCode.BAD_SPEC)


def _size(text: str) -> int:
    from pydantic_core import PydanticCustomError

    try:
        return parse_size(text)
    except PydanticCustomError as err:
        context = err.context or {}
        message = f"--memory: {context.get('message', err)}"
        raise spec_error("nightshift layout", "layout.devices", message, hint=str(context.get("hint", ""))) from None


def _group_rows(given: int | None, *, has_groups: bool) -> int | None:
    if given is None or (has_groups and given >= 1):
        return given
    message = f"--group-rows must be at least 1, got {given}" if has_groups else "--group-rows: the spec has no data.group"
    hint = "set the mean number of rows of a group" if has_groups else "remove the option"
    raise spec_error("nightshift layout", "layout.group_rows", message, hint=hint)


def _cardinalities(given: Sequence[str]) -> dict[str, int]:
    found = {}
    for text in given:
        name, _, number = text.partition("=")
        if not name or not number.isdecimal() or not 1 <= int(number) <= 2**31:
            message = f"--cardinality {shown(text)} is not NAME=NUMBER"
            hint = "write the feature's name and how many different ids it has: carrier=17"
            raise spec_error("nightshift layout", "layout.cardinality", message, hint=hint)
        found[name] = int(number)
    return found
