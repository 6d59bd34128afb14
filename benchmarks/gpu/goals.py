"""The goals of docs/gpu.md, and what lines say of them. The standard library alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure of a line, and what it should be."""

    part: str
    figure: str
    """Its key, and those below it, with dots between."""
    sign: Literal[">=", "<=", "=="]
    bound: float | bool
    is_certain: bool = False
    """Whether any card must meet it: it is no matter of speed."""

    def found(self, lines: Sequence[Line]) -> Any:
        value: Any = next((line for line in lines if line.get("part") == self.part), {})
        for key in self.figure.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def is_met(self, value: Any) -> bool | None:
        """Return whether a figure meets the goal; None: there is none."""
        if not isinstance(value, int | float):
            return None
        return bool({">=": value >= self.bound, "<=": value <= self.bound, "==": value == self.bound}[self.sign])

    @property
    def words(self) -> str:
        return f"{self.part}: {self.figure} {self.sign} {self.bound}"


GOALS: Final = (
    Goal(part="loop", figure="mfu", sign=">=", bound=0.5),
    Goal(part="loop", figure="utilization_pct", sign=">=", bound=90.0),
    Goal(part="loop", figure="waits_for_data", sign="<=", bound=0.01),
    Goal(part="loop", figure="beside_by_hand", sign=">=", bound=0.99),
    Goal(part="syncs", figure="syncs_per_step", sign="==", bound=0.0),
    Goal(part="twice", figure="equal_twice", sign="==", bound=True, is_certain=True),
    Goal(part="twice", figure="equal_after_kill", sign="==", bound=True, is_certain=True),
    Goal(part="twice", figure="equal_twice_compiled", sign="==", bound=True),
    Goal(part="mfu", figure="ours_beside_by_hand", sign=">=", bound=0.99),
    Goal(part="loader", figure="rows_per_second_pageable", sign=">=", bound=4_300_000),
    Goal(part="loader", figure="waits_pageable", sign="<=", bound=0.02),
    Goal(part="stall", figure="stall_2_beside_copy", sign="<=", bound=1.2),
    Goal(part="fsdp", figure="fsdp2_beside_plain", sign=">=", bound=0.97),
    Goal(part="cpu_gpu", figure="ranker.difference", sign="<=", bound=1e-3, is_certain=True),
    Goal(part="cpu_gpu", figure="language_model.difference", sign="<=", bound=1e-3, is_certain=True),
    Goal(part="nccl", figure="one_rank.is_right", sign="==", bound=True, is_certain=True),
    Goal(part="nccl", figure="shared.is_right", sign="==", bound=True, is_certain=True),
    Goal(part="nccl", figure="shared.same_gradients", sign="==", bound=True, is_certain=True),
    Goal(part="nccl", figure="hang.is_ended", sign="==", bound=True, is_certain=True),
    Goal(part="ranker", figure="graphs_beside_eager", sign=">=", bound=2.0),
    Goal(part="tests", figure="code", sign="==", bound=0, is_certain=True),
)


def judged(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return each goal with the figure and whether it is met; None where there is no figure."""
    values = [(goal, goal.found(lines)) for goal in GOALS]
    return [{"goal": goal.words, "figure": value, "is_met": goal.is_met(value), "is_certain": goal.is_certain} for goal, value in values]


def table(goals: Sequence[dict[str, Any]]) -> str:
    """Return the goals as rows of a table in Markdown."""
    words = {True: "met", False: "**missed**", None: "no figure"}
    rows = [f"| {goal['goal']} | {goal['figure']} | {words[goal['is_met']]} |" for goal in goals]
    return "\n".join(["| goal | figure | |", "| --- | --- | --- |", *rows])
