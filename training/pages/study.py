"""A study's page: one self-contained HTML file, the same bytes for the same trials."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from training.format import brief, finite, number
from training.pages.axes import Axis
from training.pages.charts import Chart, Look, staircase
from training.pages.templates import rendered
from training.spec.sections.tuning import Tune
from training.tuning.records import TrialRecord, is_minimized, objective_value

COMPLETE: Final = Look(color="#1b6ca8", line_width=1.0)
PRUNED: Final = Look(color="#b0b0b0", line_width=1.0)
BEST: Final = Look(color="#d1701b")
MAX_SLICES: Final = 12


def render_study(
    tune: Tune, records: Sequence[TrialRecord], best: TrialRecord, importance: Mapping[str, float], *, pipeline: str, as_of: str
) -> bytes:
    """Return the page: the best settings, what mattered, how the search went, every trial."""
    ranked = sorted(records, key=lambda r: (r.state != "complete", r.value if r.value is not None else float("inf"), r.slot))
    # Sorted by what the search minimizes, shown as the objective has it.
    records, ranked = ([_of_objective(each, tune.objective) for each in found] for found in (records, ranked))
    best = _of_objective(best, tune.objective)
    plots = {
        "Course of the study": _course(records, best, tune.objective),
        "Lowest validation loss of each trial so far": _curves(records),
    }
    plots |= {f"By {name}": _by_setting(records, name, tune) for name in list(importance or tune.space)[:MAX_SLICES]}
    values = {
        "pipeline": pipeline,
        "as_of": as_of,
        "tune": tune,
        "best": best,
        "lower_is_better": is_minimized(tune.objective),
        "importance": importance,
        "records": ranked,
        "names": list(tune.space),
        "plots": plots,
        "num_epochs": sum(record.epochs for record in records),
    }
    return rendered("study.html", values, number=number, brief=brief)


def _of_objective(record: TrialRecord, objective: str) -> TrialRecord:
    return record if record.value is None else replace(record, value=objective_value(objective, record.value))


def _course(records: Sequence[TrialRecord], best: TrialRecord, objective: str) -> str:
    chart = Chart("Course of the study", Axis(name="trial", is_integer=True), Axis(name=objective))
    complete = [(record.slot, record.value) for record in records if record.state == "complete" and record.value is not None]
    slots, values = [slot for slot, _ in complete], [value for _, value in complete]
    chart.points(slots, values, COMPLETE, "complete")
    better = min if is_minimized(objective) else max
    chart.line(*staircase([*slots, slots[-1]], list(itertools.accumulate(values, better))), BEST, "best so far")
    chart.rule(x=best.slot)
    return chart.svg()


def _curves(records: Sequence[TrialRecord]) -> str:
    chart = Chart("Lowest validation loss of each trial so far", Axis(name="epoch", is_integer=True), Axis(name="validation loss"))
    for state, look in (("complete", COMPLETE), ("pruned", PRUNED)):
        label = state
        for record in records:
            if record.state == state and record.losses:
                epochs, losses = zip(*record.losses, strict=True)
                chart.line(epochs, losses, look, label)
                label = ""
    return chart.svg()


def _by_setting(records: Sequence[TrialRecord], name: str, tune: Tune) -> str:
    space = tune.space[name]
    choices = space.choices or ()
    axis = Axis(name=name, is_log=space.log, is_integer=space.int_ is not None, categories=[str(choice) for choice in choices])
    chart = Chart(f"By {name}", axis, Axis(name=tune.objective))
    complete = [record for record in records if record.state == "complete" and name in record.settings]
    values = [choices.index(record.settings[name]) if choices else finite(record.settings[name]) for record in complete]
    known = [
        (value, record.value) for value, record in zip(values, complete, strict=True) if value is not None and record.value is not None
    ]
    chart.points([value for value, _ in known], [objective for _, objective in known], COMPLETE)
    return chart.svg()
