"""Compare two versions of models, or two runs: settings, data, code, metrics with the paired interval, slices, cost.

    nightshift compare MODEL@VERSION MODEL@VERSION [--json]
    nightshift compare PIPELINE:RUN_ID PIPELINE:RUN_ID [--json]

A version and a run can be compared too. The server is that of --server or NIGHTSHIFT_SERVER, with the token in NIGHTSHIFT_TOKEN;
without them, the laptop installation.

Exit codes: 0 done; 2 the command line is wrong; 64 the request is wrong; 74 the server does not answer; 77 refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from nightshift.client.client import Client
from nightshift.client.query_command import describe_server_command, print_json, print_table
from nightshift.queries.schemas import ComparedSide, ComparedSlice, PairedGain, SideBySide
from training.contracts import Instant, instant_text
from training.format import NOTHING, brief
from training.sanitizing import for_terminal

SHOWN_DIGITS = 12
MIB = 2**20


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    describe_server_command(parser, _compare, "nightshift compare search_ranking@1 search_ranking@1.0.1", __doc__)
    for name in ("a", "b"):
        parser.add_argument(name, metavar=name.upper(), help="MODEL@VERSION (semantic version, digest or number), or PIPELINE:RUN_ID")


def _compare(client: Client, options: argparse.Namespace) -> int:
    found = client.compare(options.a, options.b)
    if options.json:
        print_json(found)
    else:
        _show(found)
    return 0


def _show(found: SideBySide) -> None:
    a, b = found.a, found.b
    print_table([("", a.name, b.name), *_heads(a, b)])
    rows = "the same rows" if found.is_same_rows else "each on the test rows of its own evaluation"
    _section(f"metrics, {rows}", [(each.name, _number(each.a), _number(each.b)) for each in found.metrics])
    if found.gain is not None:
        sys.stdout.write(f"  {_gain(found.gain, b.name, a.name)}\n")
    _section("slices", [(_where(each), _number(each.a), _number(each.b), f"{each.rows or 0:,} rows") for each in found.slices])
    _section("settings that differ", [(each.key, _value(each.a), _value(each.b)) for each in found.settings])
    _section("code and machines that differ", [(each.key, _value(each.a), _value(each.b)) for each in found.code])
    _section("work, in seconds of time, seconds of CPU, memory", list(_work(found)))
    for each in found.missing:
        sys.stderr.write(f"not in the store: {each}\n")


def _heads(a: ComparedSide, b: ComparedSide) -> Iterator[tuple[str, str, str]]:
    for name, one, other in (
        ("semantic version", a.semantic_version, b.semantic_version),
        ("run", a.run, b.run),
        ("as of", _instant(a.as_of), _instant(b.as_of)),
        ("outcome", a.outcome, b.outcome),
        ("data", (a.snapshot or "")[:SHOWN_DIGITS], (b.snapshot or "")[:SHOWN_DIGITS]),
        ("weights", (a.weights_digest or "")[:SHOWN_DIGITS], (b.weights_digest or "")[:SHOWN_DIGITS]),
        ("code", (a.code_version or "")[:SHOWN_DIGITS], (b.code_version or "")[:SHOWN_DIGITS]),
        ("test rows", "" if a.rows is None else f"{a.rows:,}", "" if b.rows is None else f"{b.rows:,}"),
    ):
        # Rejected versions and runs have no semantic version.
        if one or other:
            yield name, one or NOTHING, other or NOTHING


def _instant(as_of: Instant | None) -> str:
    return "" if as_of is None else instant_text(as_of)


def _section(head: str, rows: Sequence[tuple[str, ...]]) -> None:
    if rows:
        sys.stdout.write(f"\n{head}\n")
        print_table([(f"  {row[0]}", *row[1:]) for row in rows])


def _gain(found: PairedGain, better: str, than: str) -> str:
    interval = "no interval" if found.low is None or found.high is None else f"interval [{found.low:+.4g}, {found.high:+.4g}]"
    gain = NOTHING if found.gain is None else f"{found.gain:+.4g}"
    return for_terminal(f"gain of {better} over {than}: {gain}, {interval}, {found.units or 0:,} pairs (evaluation of {found.rows_of})")


def _work(found: SideBySide) -> Iterator[tuple[str, str, str]]:
    for each in found.stages:
        one = _cost(each.a_seconds, each.a_cpu_seconds, each.a_peak_memory_bytes)
        yield each.name, one, _cost(each.b_seconds, each.b_cpu_seconds, each.b_peak_memory_bytes)


def _cost(seconds: float | None, cpu: float | None, memory: int | None) -> str:
    if seconds is None:
        return NOTHING
    return f"{seconds:,.1f} s" + ("" if cpu is None else f"  {cpu:,.1f} s") + ("" if memory is None else f"  {memory / MIB:,.0f} MiB")


def _where(found: ComparedSlice) -> str:
    return ", ".join(f"{column} = {value}" for column, value in found.columns.items())


def _number(value: float | None) -> str:
    return NOTHING if value is None else brief(value)


def _value(value: Any) -> str:
    return NOTHING if value is None else json.dumps(value, ensure_ascii=False)
