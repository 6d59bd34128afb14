"""Where a stage's work lives: `stages/<pipeline>/<stage>/<work_id>/`."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from training.contracts import JsonValue, StageRequest, StageResult, canonical_json
from training.errors import StoreError, shown
from training.store import records
from training.store.bucket import Bucket
from training.store.chains import Chain
from training.store.condemned import Condemned

logger = logging.getLogger(__name__)

RESULT_HINT: Final = "delete this file: the stage's next run makes it again"
REQUEST_HINT: Final = "clear the task: it writes a new request"
RECORD_HINT: Final = "delete this file"
_CONTENT: Final = re.compile(
    r"(?:^|/)(objects/sha256/[0-9a-f]{2}/[0-9a-f]{64}|manifests/sha256/[0-9a-f]{2}/[0-9a-f]{64}\.json|reports/[^/]+/[0-9a-f]{64})$"
)


class StoreUri(str):
    """A URI of the store as one value: nobody else splits it.

    A text, so that it is compared, stored and sent as one. It need not be of this store: a store that was moved has URIs of its old place.
    """

    __slots__ = ()

    @property
    def digest(self) -> str:
        """The SHA-256 that names the content of an object, a manifest or a report; of another URI, its last part."""
        return self.rpartition("/")[2].removesuffix(".json")

    @property
    def content_key(self) -> str | None:
        """Of an object, a manifest or a report: its key in any store, as `objects/sha256/…`; of another URI None."""
        match = _CONTENT.search(self)
        return None if match is None else match[1]

    @property
    def folder_key(self) -> str:
        """Of a work folder: its key in any store, `stages/<pipeline>/<stage>/<work_id>`."""
        return "/".join(self.rstrip("/").split("/")[-4:])


def new_attempt_id() -> str:
    """Return a fresh attempt id: 12 hex digits of the clock, so that ids sort by start, then 12 random ones."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"


class WorkFolder:
    """The folder of one piece of work.

    _RESULT.json                       last, by conditional create: the work is done
    journal/<n>.json                   the chain: lease, checkpoint and commit records, fenced
    attempts/<id>/_REQUEST.json        everything the attempt needs
    attempts/<id>/log.txt, heartbeat.json, _ERROR.json
    attempts/<id>/stragglers/<rank>.json   which rank was slow, and on which node
    launches/<n>.json                  what was requested from a cluster: the same launch is never requested twice
    attempts/<id>/_ENDED.json          how the cluster says it ended
    """

    def __init__(self, bucket: Bucket, pipeline: str, stage: str, work_id: str) -> None:
        self._bucket = bucket
        self._prefix = f"stages/{pipeline}/{stage}/{work_id}"
        self.uri = bucket.uri(self._prefix)
        self._condemned = Condemned(bucket)

    def claim(self) -> bool:
        """Keep the collector from dropping this work folder for a grace period; return whether it was about to."""
        return self._condemned.claim(self._prefix)

    def chain(self) -> Chain:
        return Chain(self._bucket, f"{self._prefix}/journal", check=_check_record, hint=self._chain_hint)

    @property
    def _chain_hint(self) -> str:
        return f"delete the folder {self.uri}: the stage's next run does the work again, from the start"

    def result(self) -> StageResult | None:
        """Return the committed result, or None while there is none whose artifact is in the store.

        The caller may rely on the artifact: the collector does not delete the work folder within the grace period after this.

        Raises:
            StoreError: `record.damaged`, `record.newer`, or `result.mismatch` for the result of other work.
        """
        result = self.committed()
        if result is None:
            return None
        if self.claim():
            # The collector was about to drop the work folder, and may have done so.
            result = self.committed()
        if result is not None and not self.has_artifact(result):
            logger.warning("%s is done, but its artifact %s is missing: the work is done again", self.uri, result.artifact_uri)
            return None
        return result

    def has_artifact(self, result: StageResult) -> bool:
        """Return whether the manifest of a result is there: one request. Its objects are deleted after it."""
        key = StoreUri(result.artifact_uri).content_key
        return key is None or self._bucket.exists(key)

    def committed(self) -> StageResult | None:
        """Return the committed result without a claim on it: the collector may delete it, and its artifact, at any time.

        Raises:
            StoreError: as `result`.
        """
        value, uri = self._find("_RESULT.json", RESULT_HINT), self._bucket.uri(f"{self._prefix}/_RESULT.json")
        if value is None:
            return None
        with records.readable(uri, hint=RESULT_HINT):
            records.require(value, "result", artifact_uri=str, digest=str, attempt_id=str, attempts=int, committed_at=str, run=dict)
            records.require_readable_format(uri, value)
            result = StageResult.from_json(canonical_json(value))
        found = f"stages/{result.pipeline}/{result.stage}/{result.work_id}"
        if found != self._prefix:
            raise StoreError("result.mismatch", f"{uri} is the result of other work: {shown(found)}", hint=RESULT_HINT)
        return result

    def create_result(self, result: StageResult) -> bool:
        """Commit; say whether this call did (False: another attempt's result stands).

        A result whose artifact is missing is replaced.
        """
        key = f"{self._prefix}/_RESULT.json"
        data = records.encode(key, result.to_xcom())
        if self._bucket.create_own(key, data):
            return True
        found = self.committed()
        if found is not None and self.has_artifact(found):
            return False
        self._bucket.replace(key, data)
        return True

    def write_request(self, request: StageRequest) -> str:
        """Write an attempt's request; return its URI, the stage process's only argument."""
        key = f"{self._prefix}/attempts/{request.attempt_id}/_REQUEST.json"
        self.claim()
        self._bucket.create(key, records.encode(key, json.loads(request.to_json())))
        return self._bucket.uri(key)

    def attempts(self) -> list[str]:
        """Return the ids of all attempts, sorted."""
        return self._bucket.folders(f"{self._prefix}/attempts")

    def request(self, attempt_id: str) -> StageRequest:
        """Return an attempt's request.

        Raises:
            StoreError: `object.missing`, `record.damaged`, `record.newer`, or `request.mismatch` for one that belongs elsewhere.
        """
        key = f"{self._prefix}/attempts/{attempt_id}/_REQUEST.json"
        uri = self._bucket.uri(key)
        value = records.decode(key, self._bucket.get(key), uri=uri, hint=REQUEST_HINT)
        with records.readable(uri, hint=REQUEST_HINT):
            texts = dict.fromkeys(("pipeline", "stage", "work_id", "attempt_id", "store_uri", "spec_uri", "as_of"), str)
            records.require(value, "request", **texts, inputs=dict, run=dict)
            records.require_readable_format(uri, value)
            request = StageRequest.from_json(canonical_json(value))
        found = f"stages/{request.pipeline}/{request.stage}/{request.work_id}/attempts/{request.attempt_id}"
        if f"{found}/_REQUEST.json" != key:
            raise StoreError("request.mismatch", f"{uri} is the request of other work: {shown(found)}", hint=REQUEST_HINT)
        return request

    def write_error(self, attempt_id: str, error: Mapping[str, object]) -> bool:
        """Write how an attempt failed; the first writer's word stands (later ones are consequences)."""
        return self._create_record(f"attempts/{attempt_id}/_ERROR.json", error)

    def forget_error(self, attempt_id: str) -> None:
        """Delete how an earlier start of an attempt ended: the one under way has an end of its own."""
        self._bucket.delete(f"{self._prefix}/attempts/{attempt_id}/_ERROR.json")

    def error(self, attempt_id: str) -> dict[str, JsonValue] | None:
        """Return how an attempt failed, or None.

        Raises:
            StoreError: `record.damaged` or `record.newer`.
        """
        return self._record(f"attempts/{attempt_id}/_ERROR.json", exit_code=int)

    def write_straggler(self, attempt_id: str, rank: int, straggler: Mapping[str, object]) -> bool:
        """Write which rank of an attempt is slow; what was first written of a rank stands."""
        return self._create_record(f"attempts/{attempt_id}/stragglers/{rank}.json", straggler)

    def stragglers(self, attempt_id: str) -> list[dict[str, JsonValue]]:
        """Return the ranks of an attempt that were named as slow, one record each.

        Raises:
            StoreError: `record.damaged` or `record.newer`.
        """
        prefix = f"{self._prefix}/attempts/{attempt_id}/stragglers/"
        names = [entry.key.removeprefix(f"{self._prefix}/") for entry in self._bucket.list(prefix)]
        return [record for name in sorted(names) if (record := self._record(name, rank=int, node=str)) is not None]

    def launches(self) -> Chain:
        """Return the chain of launches: the requests to a cluster, in order."""
        return Chain(self._bucket, f"{self._prefix}/launches", check=_check_launch, hint=self._chain_hint)

    def write_ended(self, attempt_id: str, record: Mapping[str, object]) -> bool:
        """Write how the cluster says an attempt ended; the first observer's word stands."""
        return self._create_record(f"attempts/{attempt_id}/_ENDED.json", record)

    def ended(self, attempt_id: str) -> dict[str, JsonValue] | None:
        """Return how an attempt ended in the cluster, or None: as far as anyone noted, it has not.

        Raises:
            StoreError: `record.damaged` or `record.newer`.
        """
        return self._record(f"attempts/{attempt_id}/_ENDED.json", phase=str)

    def write_heartbeat(self, attempt_id: str, beat: Mapping[str, object]) -> None:
        self._bucket.put(f"{self._prefix}/attempts/{attempt_id}/heartbeat.json", canonical_json(beat))

    def heartbeat(self, attempt_id: str) -> bytes | None:
        return self._bucket.find(f"{self._prefix}/attempts/{attempt_id}/heartbeat.json")

    def write_log(self, attempt_id: str, text: str) -> None:
        self._bucket.put(f"{self._prefix}/attempts/{attempt_id}/log.txt", text.encode("utf-8", "replace"))

    def _find(self, name: str, hint: str) -> Any:
        key = f"{self._prefix}/{name}"
        data = self._bucket.find(key)
        return None if data is None else records.decode(key, data, uri=self._bucket.uri(key), hint=hint)

    def _create_record(self, name: str, record: Mapping[str, object]) -> bool:
        key = f"{self._prefix}/{name}"
        return self._bucket.create(key, records.encode(key, dict(record)))

    def _record(self, name: str, **types: type) -> dict[str, JsonValue] | None:
        value = self._find(name, RECORD_HINT)
        if value is None:
            return None
        with records.readable(self._bucket.uri(f"{self._prefix}/{name}"), hint=RECORD_HINT):
            return records.require(value, "record", **{field: wanted for field, wanted in types.items() if field in value})


def read_request(bucket: Bucket, uri: str) -> StageRequest:
    """Return the request at `uri`, which names its work folder and its attempt.

    Raises:
        StoreError: as `WorkFolder.request`; `request.mismatch` where `uri` is not the place of a request.
    """
    parts = bucket.key(uri).split("/")
    if len(parts) != 7 or (parts[0], parts[4], parts[6]) != ("stages", "attempts", "_REQUEST.json"):
        raise StoreError("request.mismatch", f"{shown(uri)} is not the place of a request")
    return WorkFolder(bucket, *parts[1:4]).request(parts[5])


def _check_record(value: Any) -> None:
    records.require(value, "record of the journal", kind=str, epoch=int)
    if value["kind"] == "lease":
        records.require(value, "lease", owner=str, attempt_id=str)
    else:
        records.require(value, "record of the journal", payload=dict)


def _check_launch(value: Any) -> None:
    records.require(value, "launch", attempt_id=str, request_uri=str, name=str, nodes=int, owner=str)
