"""Gates on how sure a difference is: the interval of the gain by rows and by blocks, and a canary's always-valid alarm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from training.registry.reasons import Reason, missing, number, table
from training.spec.sections.evaluation import Evaluate
from training.spec.types import duration_text

BLOCKS_SINCE: Final = 3
"""Format of `metrics.json` from which on a comparison has an interval by blocks; older ones are judged by the interval that they have."""
REQUIRED_BLOCKS: Final = 8
"""Of a canary's alarm, where its record is older than the field."""
CLUSTERS: Final = {"time": "blocks of time", "entity": "entities", "group": "groups"}


def significance(evaluation: Mapping[str, Any], key: str, gate: str, rival: str, rules: Evaluate) -> Reason:
    """Judge the lower end of the wider interval of the gain over `rival`; `evaluation[key]` is the comparison."""
    comparison = table(evaluation, key)
    blocks = table(comparison, "blocks")
    version = evaluation.get("format_version")
    if isinstance(version, int) and version >= BLOCKS_SINCE and not blocks:
        return missing(gate, f"the interval by blocks of the gain over {rival}")
    share = f"{100 * rules.confidence:.4g} %"
    if blocks.get("bounded") is False:
        hint = (
            "a longer data.split.test, evaluate.entities, or a shorter evaluate.block"
            if _may_be_cut(blocks)
            else "a longer data.split.test"
        )
        words = f"the {share} interval of the gain over {rival} is unbounded, {_too_few(blocks)}: what helps is {hint}"
        return Reason(gate=gate, passed=False, severity=rules.severity_of(gate), words=words, numbers=_numbers(comparison, rules))
    low, high = number(comparison.get("low")), number(comparison.get("high"))
    if low is None or high is None:
        return missing(gate, f"the interval of the gain over {rival}")
    how = f" {_how(comparison, blocks)}" if blocks else ""
    words = f"{share} interval of the gain over {rival} [{low:+.6g}, {high:+.6g}]{how}, lower end > 0 required"
    return Reason(gate=gate, passed=low > 0, severity=rules.severity_of(gate), words=words, numbers=_numbers(comparison, rules))


def canary_alarm(evaluation: Mapping[str, Any], rules: Evaluate) -> Iterator[Reason]:
    """Judge a canary's alarm; nothing where too few blocks are complete, or the evaluation is older than the alarm."""
    alarm = table(evaluation, "alarm")
    evidence, required = number(alarm.get("e_value")), number(alarm.get("required"))
    if evidence is None or required is None or not isinstance(alarm.get("is_worse"), bool):
        return
    num_blocks, required_blocks = alarm.get("num_blocks"), number(alarm.get("required_blocks")) or REQUIRED_BLOCKS
    of = _alarm_blocks(alarm)
    side = "worse" if (number(alarm.get("mean")) or 0.0) < 0 else "better"
    words = f"evidence that the canary is {side}: e-value {evidence:.4g} by {of}, {required:.4g} required for an alarm"
    if (number(num_blocks) or 0) < required_blocks:
        few = f"{of}, at least {required_blocks:.0f} required"
        words = f"no alarm by significance can be raised yet: {few}; promote.canary.tolerance decides at the end"
    numbers = {
        **{"e_value": evidence, "required": required, "num_blocks": num_blocks},
        **{"required_blocks": required_blocks, "confidence": rules.confidence},
    }
    yield Reason(gate="significance", passed=not alarm["is_worse"], words=words, numbers=numbers)


def _alarm_blocks(alarm: Mapping[str, Any]) -> str:
    num_blocks, clusters = alarm.get("num_blocks"), str(alarm.get("clusters"))
    if clusters == "time":
        return f"{num_blocks} completed blocks of {_duration(alarm.get('block_seconds'))} with rows"
    if clusters == "none":
        return f"{num_blocks} blocks (rows of fewer than 8 hours, and no entities or groups)"
    return f"{num_blocks} {CLUSTERS.get(clusters, 'blocks')}"


def _how(comparison: Mapping[str, Any], blocks: Mapping[str, Any]) -> str:
    by = "rows" if comparison.get("decided_by") == "rows" else CLUSTERS.get(str(blocks.get("clusters")), "blocks of time")
    if blocks.get("too_few_blocks") is True:
        return f"(wider by {by}; {_too_few(blocks)})"
    if by != "rows" and blocks.get("clusters") == "entity":
        by = f"blocks of time and {blocks.get('num_clusters')} entities{_of(blocks)}"
    return f"(wider by {by}; {blocks.get('num_blocks')} blocks of {_duration(blocks.get('block_seconds'))}, {_lag1(blocks)})"


def _too_few(blocks: Mapping[str, Any]) -> str:
    what = CLUSTERS.get(str(blocks.get("clusters")))
    clusters = f"{blocks.get('num_clusters')} {what}{_of(blocks)} instead" if what else "no entities or groups to use instead"
    length = _duration(blocks.get("block_seconds"))
    return f"too few blocks: {blocks.get('num_blocks')} of {length}, 8 required, {_lag1(blocks)}; {clusters}"


def _of(blocks: Mapping[str, Any]) -> str:
    return f" ({blocks['columns']})" if blocks.get("columns") else ""


def _lag1(blocks: Mapping[str, Any]) -> str:
    value = number(blocks.get("lag1"))
    return "lag-1 autocorrelation unknown" if value is None else f"lag-1 autocorrelation {value:.2f}"


def _may_be_cut(blocks: Mapping[str, Any]) -> bool:
    """Return whether another key would help: not where the dependence that was measured is too long by itself."""
    automatic, length = number(blocks.get("automatic_seconds")), number(blocks.get("block_seconds"))
    return automatic is not None and length is not None and automatic < 0.75 * length


def _duration(seconds: Any) -> str:
    known = number(seconds)
    if known is None:
        return "unknown length"
    # Two digits are enough: the length follows from how the rows' time divides.
    unit = 86_400 if known >= 86_400 else 3_600 if known >= 3_600 else 60
    return f"{known / unit:.2g}{ {86_400: 'd', 3_600: 'h', 60: 'min'}[unit] }" if known % unit else duration_text(timedelta(seconds=known))


def _numbers(comparison: Mapping[str, Any], rules: Evaluate) -> dict[str, Any]:
    blocks = table(comparison, "blocks")
    names = ("clusters", "columns", "num_clusters", "num_blocks", "block_seconds", "lag1", "too_few_blocks", "bounded")
    found: dict[str, Any] = {name: number(comparison.get(name)) for name in ("low", "high", "row_low", "row_high") if name in comparison}
    found |= {name: comparison[name] for name in ("decided_by",) if name in comparison}
    return {**found, "confidence": rules.confidence, **{name: blocks[name] for name in names if name in blocks}}
