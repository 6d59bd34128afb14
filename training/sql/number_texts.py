"""Numbers as people write them, in SQL: which texts are numbers of one form, and the same numbers as a computer writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from training.sql.expressions import literal

BLANKS: Final = r"[\s\x{00A0}\x{202F}]"
"""Of RE2: also the blanks that spreadsheets put between thousands."""
IGNORED: Final = rf"{BLANKS}|\+"
SIGN: Final = r"[-+\x{2212}]?"


@dataclass(frozen=True, slots=True)
class NumberForm:
    """How the numbers of a column are written. Nothing is guessed: a text in another form is none of them."""

    decimal: str = "."
    thousands: str = ""
    """Between groups of three digits; a number may also have none."""
    unit: str = ""
    """Before or behind each number."""

    def pattern(self, *, is_integer: bool = False) -> str:
        """Return RE2's pattern of a whole text; blanks around it are allowed, and a zero before other digits is not."""
        between = BLANKS if self.thousands == " " else re.escape(self.thousands)
        digits = rf"[1-9][0-9]{{0,2}}(?:{between}[0-9]{{3}})+|[1-9][0-9]*" if self.thousands else "[1-9][0-9]*"
        point = re.escape(self.decimal)
        number = f"(?:0|{digits})"
        if not is_integer:
            number = rf"(?:{number}(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][-+]?[0-9]+)?"
        if not self.unit:
            return f"{BLANKS}*{SIGN}{number}{BLANKS}*"
        unit = f"{BLANKS}*{re.escape(self.unit)}{BLANKS}*"
        return f"{BLANKS}*(?:{SIGN}{unit}{number}|{unit}{SIGN}{number}|{SIGN}{number}{unit}){BLANKS}*"

    def plain(self, text: str) -> str:
        """Return SQL of a text that has the pattern, with a point for the fraction and nothing else but sign and exponent."""
        found = f"replace({text}, {literal(self.unit)}, '')" if self.unit else text
        found = f"regexp_replace({found}, {literal(IGNORED)}, '', 'g')"
        for written, meant in ((self.thousands.strip(), ""), (self.decimal, "."), ("\N{MINUS SIGN}", "-")):
            if written and written != meant:
                found = f"replace({found}, {literal(written)}, {literal(meant)})"
        return found
