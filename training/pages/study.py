"""A study's page: one self-contained HTML file, the same bytes for the same trials."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from training.format import brief, number
from training.pages.plots import add_legend, new_figure, svg_text
from training.pages.templates import rendered
from training.spec.sections.tuning import Tune
from training.tuning.records import TrialRecord, is_minimized, objective_value

COLORS: Final = {"complete": "#1b6ca8", "pruned": "#b0b0b0", "failed": "#c0392b"}
MAX_SLICES: Final = 12


def render_study(
    tune: Tune, records: Sequence[TrialRecord], best: TrialRecord, importance: Mapping[str, float], *, pipeline: str, as_of: str
) -> bytes:
    """Return the page: the best settings, what mattered, how the search went, every trial."""
    ranked = sorted(records, key=lambda r: (r.state != "complete", r.value if r.value is not None else float("inf"), r.slot))
    # Sorted by what the search minimizes, shown as the objective has it.
    records, ranked = ([_of_objective(each, tune.objective) for each in found] for found in (records, ranked))
    best = _of_objective(best, tune.objective)
    figures = {
        "Course of the study": _course(records, best, tune.objective),
        "Lowest validation loss of each trial so far": _curves(records),
    }
    figures |= {f"By {name}": _by_setting(records, name, tune) for name in list(importance or tune.space)[:MAX_SLICES]}
    values = {
        "pipeline": pipeline,
        "as_of": as_of,
        "tune": tune,
        "best": best,
        "lower_is_better": is_minimized(tune.objective),
        "importance": importance,
        "records": ranked,
        "names": list(tune.space),
        "plots": {title: svg_text(figure, title) for title, figure in figures.items()},
        "num_epochs": sum(record.epochs for record in records),
    }
    return rendered("study.html", values, number=number, brief=brief)


def _of_objective(record: TrialRecord, objective: str) -> TrialRecord:
    return record if record.value is None else replace(record, value=objective_value(objective, record.value))


def _course(records: Sequence[TrialRecord], best: TrialRecord, objective: str) -> Figure:
    figure, axes = new_figure(("trial", objective))
    complete = [record for record in records if record.state == "complete" and record.value is not None]
    axes.scatter([r.slot for r in complete], [r.value for r in complete], color=COLORS["complete"], s=14, label="complete")
    better = min if is_minimized(objective) else max
    bests = list(itertools.accumulate((r.value for r in complete if r.value is not None), better))
    axes.step([r.slot for r in complete], bests, where="post", color="#d1701b", label="best so far")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.axvline(best.slot, color="#dddddd", linewidth=1, zorder=0)
    add_legend(axes)
    return figure


def _curves(records: Sequence[TrialRecord]) -> Figure:
    figure, axes = new_figure(("epoch", "validation loss"))
    for state in ("pruned", "complete"):
        for record in records:
            if record.state == state and record.losses:
                epochs, losses = zip(*record.losses, strict=True)
                axes.plot(epochs, losses, color=COLORS[state], linewidth=0.8, marker="." if len(epochs) == 1 else None)
    return figure


def _by_setting(records: Sequence[TrialRecord], name: str, tune: Tune) -> Figure:
    figure, axes = new_figure((name, tune.objective))
    known = [record for record in records if record.state == "complete" and name in record.settings]
    space = tune.space[name]
    values = [r.settings[name] if space.choices is None else space.choices.index(r.settings[name]) for r in known]
    axes.scatter(values, [r.value for r in known], color=COLORS["complete"], s=14)
    if space.choices is not None:
        axes.set_xticks(range(len(space.choices)), [str(choice) for choice in space.choices])
    elif space.log:
        axes.set_xscale("log")
    elif space.int_ is not None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
