"""Fractions of integers as the nearest float64: one rounding, ties to even."""

from __future__ import annotations

import math


def rounded_quotient(numerator: int, denominator: int) -> float:
    """Return a fraction as the nearest float, ties to even; infinite beyond the largest one."""
    try:
        # Python divides integers with one rounding.
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


def rounded_root(numerator: int, denominator: int) -> float:
    """Return the root of a fraction as the nearest float."""
    if not numerator:
        return 0.0
    # At least 64 bits of the root: its last bit then only says that the root is not exact, and cannot be a tie.
    shift = max(0, 128 + denominator.bit_length() - numerator.bit_length() + 1) & ~1
    scaled, remainder = divmod(numerator << shift, denominator)
    root = math.isqrt(scaled)
    is_exact = not remainder and root * root == scaled
    return rounded_quotient(2 * root + (not is_exact), 2 << shift // 2)
