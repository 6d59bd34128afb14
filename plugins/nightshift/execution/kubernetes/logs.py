"""The log of a launch, line by line as it is written: the first member's live, the failed ones' at the end."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from aiohttp import ClientError
from kubernetes_asyncio import client
from kubernetes_asyncio.client.exceptions import ApiException

from nightshift.execution.kubernetes.manifests import CONTAINER
from nightshift.execution.kubernetes.status import MAX_TAIL_LINES, MAX_TAILS, Json, member_index
from nightshift.execution.local import printable

MAX_BYTES: Final = 4 * 2**20
"""Of one read; the rest comes with the next."""
NOT_FOUND: Final = 404
BAD_REQUEST: Final = 400
NO_LOG: Final = frozenset({400, 410})
"""What the API answers while there is no container yet, or none any more."""


class LogFollower:
    """Follows one launch's log, best effort: what becomes of the launch never depends on it."""

    def __init__(self, api: Any, namespace: str, log: logging.Logger | Any, *, after: LogFollower | None = None) -> None:
        """Follow; `after`: continue where another follower of the same launch stopped."""
        self._core = client.CoreV1Api(api)
        self._namespace = namespace
        self._log = log
        self._tails: dict[str, list[str]] = after._tails if after else {}
        self._last: str = after._last if after else ""
        self._last_at: datetime | None = after._last_at if after else None
        self._refused: set[str] = after._refused if after else set()

    async def follow(self, pods: Sequence[Json]) -> None:
        """Say the lines that the first member wrote since the last call."""
        firsts = [pod for pod in pods if member_index(pod) == 0 and _has_log(pod)]
        if not firsts:
            return
        # Of two, one has stopped, and the Job controller has made the other in its place.
        newest = max(firsts, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
        for stamp, line in await self._lines(newest["metadata"]["name"]):
            self._last, self._last_at = stamp, _instant(stamp)
            self._log.info("%s", line)

    async def remember(self, pods: Sequence[Json]) -> None:
        """Read the last lines of the other members, once one has failed: those that still run will be deleted together with their logs."""
        for pod in [pod for pod in pods if member_index(pod) != 0 and _has_log(pod)][:MAX_TAILS]:
            name = pod["metadata"]["name"]
            self._tails[name] = [line for _, line in await self._lines(name, tail=True)] or self._tails.get(name, [])

    async def finish(self, pods: Sequence[Json]) -> None:
        """Say the rest of the first member's log, and the last lines of the others."""
        await self.follow(pods)
        await self.remember(pods)
        for name, lines in self._tails.items():
            for line in lines:
                self._log.info("[%s] %s", name, line)

    async def _lines(self, name: str, *, tail: bool = False) -> list[tuple[str, str]]:
        options: dict[str, Any] = {"container": CONTAINER, "timestamps": True, "limit_bytes": MAX_BYTES}
        if tail:
            options["tail_lines"] = MAX_TAIL_LINES
        elif self._last_at is not None:
            # Whole seconds, rounded up: what was said already is dropped by its time.
            options["since_seconds"] = math.ceil((datetime.now(UTC) - self._last_at + timedelta(seconds=1)).total_seconds())
        try:
            response = await checked(self._core.read_namespaced_pod_log(name, self._namespace, _preload_content=False, **options))
            body = b"" if response is None else await response.read()
        except ApiException as err:
            if err.status not in NO_LOG and err.status < 500 and name not in self._refused:
                self._refused.add(name)
                self._log.warning("the log of %s cannot be read: %s %s", name, err.status, err.reason)
            return []
        except (ClientError, OSError, TimeoutError):
            # The next look reads it again, and logs it if the cluster does not answer.
            return []
        pairs = [piece.partition(b" ")[::2] for piece in body.splitlines()]
        found = [(stamp.decode("ascii", "replace"), printable(line)) for stamp, line in pairs]
        # Without a time: a line cut at MAX_BYTES, or the kubelet's own words where the container was removed.
        found = [(stamp, line) for stamp, line in found if _instant(stamp) is not None]
        # Times are UTC with nine decimals at most, and the API drops trailing zeros: compared as instants with their text's fraction.
        return [(stamp, line) for stamp, line in found if tail or not self._last or _key(stamp) > _key(self._last)]


async def checked(asking: Any) -> Any:
    """Return an answer that was asked for as it is, None for 404: asked like that, the client raises nothing by itself.

    Raises:
        ApiException: any other status above 400.
    """
    response = await asking
    if response.status == NOT_FOUND:
        return None
    if response.status >= BAD_REQUEST:
        raise ApiException(status=response.status, reason=await response.text())
    return response


def _has_log(pod: Json) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    state = next((item.get("state") or {} for item in statuses if item["name"] == CONTAINER), {})
    return "running" in state or "terminated" in state


def _key(stamp: str) -> tuple[str, str]:
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    return whole, fraction.ljust(9, "0")


def _instant(stamp: str) -> datetime | None:
    try:
        return datetime.fromisoformat(stamp[:19]).replace(tzinfo=UTC)
    except ValueError:
        return None
