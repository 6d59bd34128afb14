"""Mutations of a Python source: each replaces one piece of it by another that a test should tell apart.

Operators, after Offutt et al., "An experimental determination of sufficient mutant operators" (TOSEM 1996), and the deletion of
statements: comparisons, arithmetic, `and` and `or`, `not`, signs, numbers, `True` and `False`, `min` and `max`, negated conditions,
statements without a value, assignments to attributes, `raise`, `return`, `break`, `continue`. Texts, annotations, docstrings
and what is only logged are left alone: no test should hold their words.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Final

COMPARISONS: Final = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
ARITHMETIC: Final = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.Pow: "*",
    ast.BitOr: "&",
    ast.BitAnd: "|",
    ast.LShift: ">>",
}
SWAPPED_CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutation:
    """A piece of a source, and what stands in its place. Offsets are bytes of the UTF-8 source."""

    start: int
    stop: int
    replacement: str
    line: int
    """1-based."""

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.replacement.encode() + source[self.stop :]

    def diff(self, source: bytes) -> str:
        """Return the changed lines before and after, with - and +."""
        first = source.rfind(b"\n", 0, self.start) + 1
        end = source.find(b"\n", self.stop)
        last = len(source) if end < 0 else end
        before = source[first:last].decode()
        after = (source[first : self.start] + self.replacement.encode() + source[self.stop : last]).decode()
        return "\n".join([*(f"  - {line}" for line in before.splitlines()), *(f"  + {line}" for line in after.splitlines())])


def mutations_of(source: bytes) -> list[Mutation]:
    """Return all mutations of a source, in its order."""
    finder = _MutationFinder(source)
    finder.visit(ast.parse(source))
    return sorted(set(finder.found), key=lambda mutation: (mutation.start, mutation.stop, mutation.replacement))


class _MutationFinder(ast.NodeVisitor):
    def __init__(self, source: bytes) -> None:
        self._source = source
        self._line_starts = [0]
        for line in source.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))
        self.found: list[Mutation] = []

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or _is_logging(node.value):
            return
        if not isinstance(node.value, ast.Yield | ast.YieldFrom):
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], ast.Attribute | ast.Subscript):
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace(node, "pass")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in (*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None), *node.body):
            self.visit(part)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._replace(node, "return None")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "break")

    def visit_If(self, node: ast.If) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
            for other in COMPARISONS[type(operator)]:
                self._replace_between(left, right, other)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        # `|` and `+` of texts and types would only raise.
        if type(node.op) in ARITHMETIC and not any(
            isinstance(side, ast.Constant | ast.JoinedStr) and _is_text(side) for side in (node.left, node.right)
        ):
            self._replace_between(node.left, node.right, ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._replace_between(left, right, "or" if isinstance(node.op, ast.And) else "and")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._replace(node, self._text(node.operand))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _is_logging(node):
            return
        if isinstance(node.func, ast.Name) and node.func.id in SWAPPED_CALLS:
            self._replace(node.func, SWAPPED_CALLS[node.func.id])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace(node, str(node.value + 1))
        elif isinstance(node.value, float):
            self._replace(node, repr(node.value * 2 + (node.value == 0)))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text."""

    def _negate(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare | ast.UnaryOp):
            self._replace(test, f"not ({self._text(test)})")

    def _replace(self, node: ast.expr | ast.stmt, replacement: str) -> None:
        start, stop = self._span(node)
        self.found.append(Mutation(start=start, stop=stop, replacement=replacement, line=node.lineno))

    def _replace_between(self, left: ast.expr, right: ast.expr, operator: str) -> None:
        """Replace the operator between two operands; brackets beside it stay."""
        start, stop = self._span(left)[1], self._span(right)[0]
        between = self._source[start:stop]
        closing = len(between) - len(between.lstrip(b" )\n"))
        opening = len(between) - len(between.rstrip(b" (\n"))
        line = left.lineno + self._source[self._span(left)[0] : start + closing].count(b"\n")
        self.found.append(Mutation(start=start + closing, stop=stop - opening, replacement=operator, line=line))

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._line_starts[node.lineno - 1] + node.col_offset, self._line_starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> str:
        start, stop = self._span(node)
        return self._source[start:stop].decode()


def _is_logging(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "logger"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
