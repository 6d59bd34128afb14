"""Gates on how sure a difference is: the interval of the gain by rows and by blocks, and a canary's always-valid alarm."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from training.contracts import JsonValue
from training.evaluation.record import Alarm, Blocks, Comparison, EvaluationRecord
from training.format import change, figure, finite
from training.registry.gates.interface import Case
from training.registry.ledger.reasons import Reason
from training.spec.scalar_types import duration_text
from training.spec.sections.evaluation import Evaluate

NAMED_OF_BLOCKS: Final = ("clusters", "columns", "num_clusters", "num_blocks", "block_seconds", "lag1", "too_few_blocks", "bounded")
"""Keys of the interval by blocks that a reason repeats."""
CLUSTERS: Final = {"time": "blocks of time", "entity": "entities", "group": "groups"}
LONGER_TEST: Final = "a longer data.split.test"
BY_THE_GAIN: Final = (
    ". The gate counts by the gain of a model, which depends on time less than the labels do, as a rule: its blocks may be shorter and more"
)


def blocks_of_labels(blocks: Blocks, least: timedelta) -> tuple[bool, str]:
    """Return whether a split has enough blocks for an interval, and which, by `evaluation.bootstrap.label_blocks`.

    With what helps where it has too few, and with the reason for which the gate may count more.

    Args:
        least: the shortest block.
    """
    if blocks.is_of_one_instant:
        return True, _entities_of_one_instant(blocks)
    why = BY_THE_GAIN if _are_longer(blocks, least.total_seconds()) else ""
    if blocks.too_few_blocks or not blocks.bounded:
        return False, f"{_too_few(blocks, 'labels')}: what helps is {_remedy(blocks)}{why}"
    return True, f"{blocks.num_blocks} blocks of {_duration(blocks.block_seconds)}, 8 required{why}"


def _are_longer(blocks: Blocks, least_seconds: float) -> bool:
    """Return whether dependence alone makes blocks longer than the shortest that the rows' times and `evaluate.block` allow.

    Where those are enough for an interval; else no gain has one.
    """
    length, bin_seconds = finite(blocks.block_seconds), finite(blocks.bin_seconds)
    if not length or bin_seconds is None:
        return False
    most = int(blocks.num_blocks * length / max(bin_seconds, least_seconds) + 0.25)
    return blocks.num_blocks < most and most >= 8


def significance(case: Case, comparison: Comparison | None, rival: str) -> Reason:
    """Judge the lower end of the wider interval of the gain over `rival`."""
    rules, blocks = case.rules, None if comparison is None else comparison.blocks
    if comparison is None or blocks is None:
        return case.missing(f"the interval by blocks of the gain over {rival}")
    share = f"{100 * rules.confidence:.4g} %"
    if not blocks.bounded:
        words = (
            f"the {share} interval of the gain over {rival} is unbounded, {_too_few(blocks, 'gain')}: {_what_helps(case, _remedy(blocks))}"
        )
        return case.reason(passed=False, words=words, numbers=_numbers(comparison, blocks, rules))
    low, high = finite(comparison.low), finite(comparison.high)
    if low is None or high is None:
        return case.missing(f"the interval of the gain over {rival}")
    ends, how = f"[{change(low)}, {change(high)}]", _how(comparison, blocks)
    words = f"{share} interval of the gain over {rival} {ends} {how}, lower end > 0 required"
    if low <= 0 < high:
        remedy = _remedy(blocks) if blocks.too_few_blocks else LONGER_TEST
        words += f"; this test split only shows gains above {figure((high - low) / 2)}, a smaller one looks like chance"
        words += f": {_what_helps(case, remedy)}"
    return case.reason(passed=low > 0, words=words, numbers=_numbers(comparison, blocks, rules))


def judge_significance(case: Case) -> Iterator[Reason]:
    """Whether the gain over the champion is surely above zero."""
    yield significance(case, case.record.comparison, "the champion")


def canary_alarm(record: EvaluationRecord, rules: Evaluate) -> Iterator[Reason]:
    """Judge a canary's alarm; nothing where too few blocks are complete."""
    alarm = record.alarm
    if alarm is None:
        return
    evidence, required = finite(alarm.e_value), finite(alarm.required)
    if evidence is None or required is None:
        return
    num_blocks, required_blocks = alarm.num_blocks, alarm.required_blocks
    of = _alarm_blocks(alarm)
    side = "worse" if (finite(alarm.mean) or 0.0) < 0 else "better"
    words = f"evidence that the canary is {side}: e-value {evidence:.4g} by {of}, {required:.4g} required for an alarm"
    if num_blocks < required_blocks:
        few = f"{of}, at least {required_blocks} required"
        words = f"no alarm by significance can be raised yet: {few}; promote.canary.tolerance decides at the end"
    numbers: dict[str, JsonValue] = {
        **{"e_value": evidence, "required": required, "num_blocks": num_blocks},
        **{"required_blocks": required_blocks, "confidence": rules.confidence},
    }
    yield Reason(gate="significance", passed=not alarm.is_worse, words=words, numbers=numbers)


def _alarm_blocks(alarm: Alarm) -> str:
    if alarm.clusters == "time":
        return f"{alarm.num_blocks} completed blocks of {_duration(alarm.block_seconds)} with rows"
    if alarm.clusters == "none":
        return f"{alarm.num_blocks} blocks (rows of fewer than 8 hours, and no entities or groups)"
    return f"{alarm.num_blocks} {CLUSTERS[alarm.clusters]}"


def _what_helps(case: Case, remedy: str) -> str:
    milder = case.milder("approve")
    return f"what helps is {remedy}" + (f", or a person who decides ({milder})" if milder else "")


def _how(comparison: Comparison, blocks: Blocks) -> str:
    by = "rows" if comparison.decided_by == "rows" else CLUSTERS.get(blocks.clusters, "blocks of time")
    if blocks.too_few_blocks:
        found = _entities_of_one_instant(blocks) if blocks.is_of_one_instant else _too_few(blocks, "gain")
        return f"(wider by {by}; {found})"
    if by != "rows" and blocks.clusters == "entity":
        by = f"blocks of time and {blocks.num_clusters} entities{_of(blocks)}"
    return f"(wider by {by}; {blocks.num_blocks} blocks of {_duration(blocks.block_seconds)}, {_lag1(blocks, 'gain')})"


def _entities_of_one_instant(blocks: Blocks) -> str:
    return f"{blocks.num_clusters} entities{_of(blocks)}, as all test rows have one instant"


def _too_few(blocks: Blocks, measured: str) -> str:
    what = CLUSTERS.get(blocks.clusters)
    clusters = f"{blocks.num_clusters} {what}{_of(blocks)} instead" if what else "no entities or groups to use instead"
    length = _duration(blocks.block_seconds)
    return f"too few blocks: {blocks.num_blocks} of {length}, 8 required, {_lag1(blocks, measured)}; {clusters}"


def _of(blocks: Blocks) -> str:
    return f" ({blocks.columns})" if blocks.columns else ""


def _lag1(blocks: Blocks, measured: str) -> str:
    """Return the dependence that the length of blocks follows from: `measured` is `gain`, or `labels` before there is a model."""
    value = finite(blocks.lag1)
    return f"lag-1 autocorrelation of the {measured} {'unknown' if value is None else f'{value:.2f}'}"


def _may_be_cut(blocks: Blocks) -> bool:
    """Return whether another key would help: not where the dependence that was measured is too long by itself."""
    automatic, length = finite(blocks.automatic_seconds), finite(blocks.block_seconds)
    return automatic is not None and length is not None and automatic < 0.75 * length


def _remedy(blocks: Blocks) -> str:
    if blocks.is_of_one_instant:
        return "a larger data.split.test"
    if finite(blocks.block_seconds) == 0:
        return "event times that differ, since all test rows have the same one, or evaluate.entities"
    if _may_be_cut(blocks):
        return f"{LONGER_TEST}, evaluate.entities, a shorter evaluate.block"
    return LONGER_TEST


def _duration(seconds: float | None) -> str:
    known = finite(seconds)
    if known is None:
        return "unknown length"
    # Two digits are enough: the length follows from how the rows' time divides.
    unit = 86_400 if known >= 86_400 else 3_600 if known >= 3_600 else 60
    if not known % unit:
        return duration_text(timedelta(seconds=known))
    return f"{float(f'{known / unit:.2g}'):g}{ {86_400: 'd', 3_600: 'h', 60: 'min'}[unit] }"


def _numbers(comparison: Comparison, blocks: Blocks, rules: Evaluate) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {name: finite(getattr(comparison, name)) for name in ("low", "high", "row_low", "row_high")}
    found |= {"decided_by": comparison.decided_by, "confidence": rules.confidence}
    return found | blocks.to_json(*NAMED_OF_BLOCKS)
