"""For how long a request's body holds the event loop of the api-server, by its shape: without a token, and by a user.

    python -m benchmarks.api_bodies [--repeats 20]

Each body has the largest size that the REST API takes. The longest time for which a task that wakes each millisecond did not run is
printed, and after them the longest of all shapes without a token: the limit is 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PATH: Final = "/api/v1/pipelines/search_ranking/runs"
LIMIT_SECONDS: Final = 0.05
TICK_SECONDS: Final = 0.001


def shapes(size: int) -> dict[str, bytes]:
    """Return bodies of up to `size` bytes."""

    def repeated(start: str, part: str, end: str) -> bytes:
        return (start + part * ((size - len(start) - len(end)) // len(part)) + end).encode()

    return {
        "empty object": b"{}",
        "lists of nothing": repeated('{"train": [', "[],", "[]]}"),
        "objects of nothing": repeated('{"train": [', "{},", "{}]}"),
        "lists in lists": repeated("", "[", ""),
        "objects in objects": repeated("", '{"a":', ""),
        "whole numbers": repeated('{"train": [', "1,", "1]}"),
        "fractions": repeated('{"train": [', "1e9,", "1]}"),
        "one whole number": repeated('{"train": ', "1", "}"),
        "texts of nothing": repeated('{"train": [', '"",', '""]}'),
        "one text of escapes": repeated('{"as_of": "', "\\u0041", '"}'),
        "quotes without an end": repeated('{"as_of": "', '\\"', ""),
        "keys": json.dumps({f"k{number}": 1 for number in range(size // 14)}).encode()[:size],
        "ends": repeated("", "]", ""),
        "no JSON": repeated("", "\x00", ""),
    }


async def held(send_request: Any, repeats: int) -> float:
    """Return the longest time in seconds for which the event loop ran nothing else."""
    longest, last, done = 0.0, time.perf_counter(), False

    async def watch() -> None:
        nonlocal longest, last
        while not done:
            await asyncio.sleep(TICK_SECONDS)
            now = time.perf_counter()
            longest, last = max(longest, now - last - TICK_SECONDS), now

    watching = asyncio.create_task(watch())
    await asyncio.sleep(5 * TICK_SECONDS)
    for _ in range(repeats):
        await send_request()
        await asyncio.sleep(2 * TICK_SECONDS)
    done = True
    await watching
    return longest


async def measured(repeats: int) -> int:
    """Print the table; return the exit code."""
    from airflow.api_fastapi.app import create_auth_manager, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.utils.db import initdb
    from httpx import ASGITransport, AsyncClient

    from nightshift.api.application import app
    from nightshift.api.request_body import MAX_BODY_BYTES

    initdb()
    create_auth_manager()
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="bob", role="user"))
    users = {"no token": {}, "forged": {"Authorization": "Bearer a.b.c"}, "a user": {"Authorization": f"Bearer {token}"}}
    worst = 0.0
    print("| body | bytes | " + " | ".join(f"{user}: ms, status" for user in users) + " |\n| --- | --- |" + " --- |" * len(users))
    async with AsyncClient(transport=ASGITransport(app), base_url="http://benchmark") as client:
        for name, body in shapes(MAX_BODY_BYTES).items():
            cells = []
            for user, headers in users.items():
                statuses = set()

                async def send(body: bytes = body, headers: dict[str, str] = headers, statuses: set[int] = statuses) -> None:
                    answer = await client.post(PATH, content=body, headers={**headers, "Content-Type": "application/json"})
                    statuses.add(answer.status_code)

                await send()
                seconds = await held(send, repeats)
                worst = max(worst, seconds) if user != "a user" else worst
                cells.append(f"{1000 * seconds:.1f}, {'/'.join(map(str, sorted(statuses)))}")
            print(f"| {name} | {len(body):,} | {' | '.join(cells)} |", flush=True)
    print(f"longest before the token is checked: {1000 * worst:.1f} ms, load {os.getloadavg()[0]:.1f}")
    return 0 if worst < LIMIT_SECONDS else 1


def main() -> int:
    """Measure in an installation of its own."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    found.add_argument("--repeats", type=int, default=20)
    options = found.parse_args()
    with tempfile.TemporaryDirectory(prefix="nightshift-bench-") as folder:
        os.environ.update(NIGHTSHIFT_HOME=folder, AIRFLOW_HOME=f"{folder}/airflow", AIRFLOW__CORE__LOAD_EXAMPLES="False")
        os.environ.update(NIGHTSHIFT_API_RATE="0", AIRFLOW__LOGGING__LOGGING_LEVEL="CRITICAL")
        sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]
        return asyncio.run(measured(options.repeats))


if __name__ == "__main__":
    sys.exit(main())
