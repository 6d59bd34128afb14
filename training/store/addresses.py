"""Where a stage's work lives: `stages/<pipeline>/<stage>/<fingerprint>/`."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from training.contracts import StageRequest, StageResult, canonical_json
from training.store.objects import Bucket
from training.store.refs import Ref


def new_attempt_id() -> str:
    """Return a fresh attempt id: 12 hex digits of the clock, so that ids sort by start, then 12 random ones."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"


class StageAddress:
    """The folder of one piece of work.

    _RESULT.json                       last, by conditional create: the work is done
    journal/<n>.json                   lease, checkpoint and commit entries, fenced
    attempts/<id>/_REQUEST.json        everything the attempt needs
    attempts/<id>/log.txt, heartbeat.json, _ERROR.json
    launches/<n>.json                  what was asked of a cluster: the same launch is never asked for twice
    attempts/<id>/_ENDED.json          how the cluster says it ended
    """

    def __init__(self, bucket: Bucket, pipeline: str, stage: str, fingerprint: str) -> None:
        self._bucket = bucket
        self._prefix = f"stages/{pipeline}/{stage}/{fingerprint}"
        self.uri = bucket.uri(self._prefix)

    def journal(self) -> Ref:
        return Ref(self._bucket, f"{self._prefix}/journal")

    def result(self) -> StageResult | None:
        """Return the committed result, or None while there is none."""
        data = self._bucket.find(f"{self._prefix}/_RESULT.json")
        return None if data is None else StageResult.from_json(data)

    def create_result(self, result: StageResult) -> bool:
        """Commit; say whether this call did (False: another attempt's result stands)."""
        return self._bucket.create_own(f"{self._prefix}/_RESULT.json", result.to_json())

    def write_request(self, request: StageRequest) -> str:
        """Write an attempt's request; return its URI, the stage process's only argument."""
        key = f"{self._prefix}/attempts/{request.attempt_id}/_REQUEST.json"
        self._bucket.create(key, request.to_json())
        return self._bucket.uri(key)

    def attempts(self) -> list[str]:
        """Return the ids of all attempts, sorted."""
        return self._bucket.folders(f"{self._prefix}/attempts")

    def request(self, attempt_id: str) -> StageRequest:
        return StageRequest.from_json(self._bucket.get(f"{self._prefix}/attempts/{attempt_id}/_REQUEST.json"))

    def write_error(self, attempt_id: str, error: Mapping[str, Any]) -> bool:
        """Write how an attempt failed; the first writer's word stands (later ones are consequences)."""
        return self._bucket.create(f"{self._prefix}/attempts/{attempt_id}/_ERROR.json", canonical_json(error))

    def error(self, attempt_id: str) -> dict[str, Any] | None:
        data = self._bucket.find(f"{self._prefix}/attempts/{attempt_id}/_ERROR.json")
        if data is None:
            return None
        loaded: dict[str, Any] = json.loads(data)
        return loaded

    def launches(self) -> Ref:
        """Return the chain of launches: what was asked of a cluster, one after the other."""
        return Ref(self._bucket, f"{self._prefix}/launches")

    def write_ended(self, attempt_id: str, record: Mapping[str, Any]) -> bool:
        """Write how the cluster says an attempt ended; the first observer's word stands."""
        return self._bucket.create(f"{self._prefix}/attempts/{attempt_id}/_ENDED.json", canonical_json(record))

    def ended(self, attempt_id: str) -> dict[str, Any] | None:
        """Return how an attempt ended in the cluster, or None: as far as anyone noted, it has not."""
        data = self._bucket.find(f"{self._prefix}/attempts/{attempt_id}/_ENDED.json")
        if data is None:
            return None
        loaded: dict[str, Any] = json.loads(data)
        return loaded

    def write_heartbeat(self, attempt_id: str, beat: Mapping[str, Any]) -> None:
        self._bucket.put(f"{self._prefix}/attempts/{attempt_id}/heartbeat.json", canonical_json(beat))

    def heartbeat(self, attempt_id: str) -> bytes | None:
        return self._bucket.find(f"{self._prefix}/attempts/{attempt_id}/heartbeat.json")

    def write_log(self, attempt_id: str, text: str) -> None:
        self._bucket.put(f"{self._prefix}/attempts/{attempt_id}/log.txt", text.encode("utf-8", "replace"))

    def log_uri(self, attempt_id: str) -> str:
        return self._bucket.uri(f"{self._prefix}/attempts/{attempt_id}/log.txt")
