"""One stage's work in the cluster, as its task sees it each time that it looks: what is known, what to start, what to wait for.

Nothing is remembered between two looks but the launches in the store. A task that is killed anywhere and tried again, two workers at once,
another run at the same work: all read the same launches, look at the same names in the cluster, and go on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from nightshift.execution.backend import Ended, spec_environment
from nightshift.execution.kubernetes.client import Submitter, in_cluster
from nightshift.execution.kubernetes.config import Cluster
from nightshift.execution.kubernetes.manifests import Launch, launch_name, launch_of
from nightshift.execution.kubernetes.status import LaunchStatus
from nightshift.execution.kubernetes.timeouts import Limits, limits_of
from nightshift.execution.outcomes import Action, StageEndedError, Verdict, judge
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from nightshift.work import Work
from training.contracts import TRAININGS, RunIdentity, StageRequest, StageResult
from training.errors import NightshiftError
from training.spec.rules.training import smaller_sizes
from training.store import StageAddress
from training.store.addresses import new_attempt_id
from training.store.launches import PREEMPTED, Cause, LaunchEntry, Launches

MAX_PAUSE_SECONDS: Final = 10
UNPLACED: Final = "gang.unplaced"


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A launch to be watched: what the trigger needs to know."""

    number: int
    name: str
    kind: str
    namespace: str
    limits: Limits
    connection: str | None
    in_cluster: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Asker:
    """Which try of which task asks."""

    run: RunIdentity
    generation: int

    def made(self, entry: LaunchEntry) -> bool:
        return entry.is_of(self.run.owner, self.generation) and entry.try_number == self.run.try_number


class RemoteWork:
    """One piece of work in the cluster."""

    def __init__(
        self, *, asker: Asker, frozen: ResolvedRun, stage: str, work: Work, address: StageAddress, cluster: Cluster, submitter: Submitter
    ) -> None:
        self._asker = asker
        self._frozen = frozen
        self._stage = stage
        self._work = work
        self._address = address
        self._cluster = cluster
        self._submitter = submitter
        self._launches = Launches(address)

    def advance(self, say: Callable[[str], None], *, watched: int = 0, reported: LaunchStatus | None = None) -> StageResult | Waiting:
        """Do what there is to do now; return the result, or what to wait for.

        Args:
            watched: launch that this task has waited for, 0 for none.
            reported: what the trigger saw of it last.

        Raises:
            StageEndedError: the work failed, or a budget is spent.
            NightshiftError: the store or the cluster does not answer, or refuses.
        """
        while True:
            launches = self._launches.all()
            last = launches[-1] if launches else None
            result = self._address.result()
            if result is not None:
                self._clear(launches, say)
                return result
            if last is None:
                self._claim([], "first", say)
                continue
            ended = self._launches.end_of(last)
            if ended is None:
                seen = self._look(last, reported if last.number == watched else None)
                if seen.phase != "ended":
                    return self._waiting(last)
                say(f"launch {last.number} ({last.name}) ended: {seen.words}")
                self._launches.note_end(last, seen.to_json())
                continue
            self._delete(last)
            result = self._address.result()
            if result is not None:
                return result
            is_mine = last.number == watched or self._asker.made(last)
            cause: Cause = self._cause(launches, LaunchStatus.from_json(ended), say) if is_mine else "again"
            self._claim(launches, cause, say, ended=LaunchStatus.from_json(ended))

    def stop(self) -> None:
        """Delete the launch that is under way, if it is this task's own: it saves a checkpoint and ends."""
        launches = self._launches.all()
        if launches and self._launches.end_of(launches[-1]) is None and self._asker.made(launches[-1]):
            self._delete(launches[-1])

    def _look(self, entry: LaunchEntry, reported: LaunchStatus | None) -> LaunchStatus:
        """Return what is known of a launch; submit it where it was claimed and nothing came of it."""
        kind = _kind(entry)
        seen = self._submitter.look(entry.name, kind)
        if seen.phase == "ended":
            return seen
        if reported is not None and reported.phase == "ended":
            # The trigger gave up on it, or saw an end of which nothing is left.
            return reported
        if seen.phase == "waiting" and kind == "Job":
            self._submitter.ensure_service(self._launch(entry))
        if seen.phase != "absent":
            return seen
        if self._launches.has_begun(entry):
            return replace(seen, phase="ended", words=f"{kind} {entry.name} is gone: deleted, or lost with its node")
        self._submitter.submit(self._launch(entry))
        if self._launches.end_of(entry) is not None:
            # Another worker saw the whole of it between our look and our create: what we made would do nothing, and stay behind.
            self._delete(entry)
            return LaunchStatus(phase="ended", code="pod.gone", words="it had ended before it was asked for again")
        return LaunchStatus(phase="waiting")

    def _cause(self, launches: list[LaunchEntry], ended: LaunchStatus, say: Callable[[str], None]) -> Cause:
        """Return why the next launch is to be, or raise if there is to be none."""
        last = launches[-1]
        verdict = judge(_as_ended(ended), self._address.error(last.attempt_id))
        mine = [entry for entry in launches if entry.is_of(self._asker.run.owner, self._asker.generation)]
        if verdict.action is Action.RELAUNCH_ONCE:
            if any(entry.cause == "memory" for entry in mine):
                raise StageEndedError(verdict)
            say(f"out of memory; once more from the last commit: {verdict.reason}")
            return "memory"
        if verdict.action not in (Action.RELAUNCH, Action.WAIT):
            raise StageEndedError(verdict)
        budget = self._frozen.spec.retries.infrastructure
        used = sum(entry.cause == "infrastructure" for entry in mine)
        if used >= budget:
            words = f"{verdict.reason}; relaunched {used} times already (retries.infrastructure)"
            raise StageEndedError(Verdict(action=Action.FAIL, reason=words, code=verdict.code))
        say(f"relaunch {used + 1} of {budget}: {verdict.reason}")
        # The first time at once; what is lost again and again is given time.
        time.sleep(min(used, MAX_PAUSE_SECONDS))
        return "infrastructure"

    def _claim(self, launches: list[LaunchEntry], cause: Cause, say: Callable[[str], None], *, ended: LaunchStatus | None = None) -> None:
        """Claim the next launch. If another operator was faster, its launch is the next one, and the caller finds it."""
        last = launches[-1] if launches else None
        number = (last.number if last else 0) + 1
        preemptions = (last.preemptions if last else 0) + (ended is not None and ended.code == PREEMPTED)
        nodes = self._nodes(last, cause, ended)
        spot = self._is_spot(preemptions)
        attempt_id = new_attempt_id()
        request = StageRequest(
            pipeline=self._frozen.spec.name,
            stage=self._stage,
            fingerprint=self._work.fingerprint,
            attempt_id=attempt_id,
            store_uri=self._frozen.store.root_uri,
            spec_uri=self._frozen.spec_uri,
            as_of=self._frozen.as_of.isoformat(),
            inputs=self._work.inputs,
            parameters={**self._work.parameters, **({"elastic": True} if self._may_shrink() else {})},
            run=self._asker.run,
            # Whoever held the work is known to have ended: the cluster says so.
            takeover_epoch=self._launches.holder_epoch(),
            code_version=self._work.code_version,
            code_files=self._work.code_files,
        )
        entry = LaunchEntry(
            attempt_id=attempt_id,
            request_uri=self._address.write_request(request),
            name=launch_name(self._frozen.spec.name, self._stage, self._work.fingerprint, number),
            nodes=nodes,
            spot=spot,
            cause=cause,
            owner=self._asker.run.owner,
            try_number=self._asker.run.try_number,
            generation=self._asker.generation,
            preemptions=preemptions,
        )
        if self._launches.claim(entry, after=number - 1):
            where = f"{nodes} nodes" if nodes > 1 else "one pod"
            say(f"launch {number}: {entry.name}, {where}{' on spot nodes' if spot else ''}; again by hand: {_by_hand(request, entry)}")

    def _nodes(self, last: LaunchEntry | None, cause: Cause, ended: LaunchStatus | None) -> int:
        if self._stage not in TRAININGS:
            return 1
        placement = self._frozen.spec.train.placement
        if last is None or cause == "again":
            return placement.nodes
        if ended is not None and ended.code == UNPLACED:
            fewer = [size for size in self._smaller_sizes() if size < last.nodes]
            return fewer[0] if fewer else last.nodes
        return last.nodes

    def _is_spot(self, preemptions: int) -> bool:
        if self._stage not in TRAININGS or self._cluster.spot is None or not self._frozen.spec.train.placement.spot:
            return False
        return preemptions < max(self._cluster.spot.fallback_after, 1)

    def _may_shrink(self) -> bool:
        return self._stage in TRAININGS and bool(self._smaller_sizes())

    def _smaller_sizes(self) -> list[int]:
        train = self._frozen.spec.train
        return smaller_sizes(train.placement, train.batch_size)

    def _waiting(self, entry: LaunchEntry) -> Waiting:
        can_shrink = entry.number > 1 and self._stage in TRAININGS and any(size < entry.nodes for size in self._smaller_sizes())
        return Waiting(
            number=entry.number,
            name=entry.name,
            kind=_kind(entry),
            namespace=self._cluster.namespace,
            limits=limits_of(self._cluster, may_shrink=can_shrink),
            connection=self._cluster.connection,
            in_cluster=None if self._cluster.connection else in_cluster(),
        )

    def _launch(self, entry: LaunchEntry) -> Launch:
        launch = launch_of(
            self._frozen.spec,
            self._cluster,
            stage=self._stage,
            name=entry.name,
            attempt_id=entry.attempt_id,
            request_uri=entry.request_uri,
            nodes=entry.nodes,
            spot=entry.spot,
        )
        of_the_cluster = pod_environment(self._cluster, Settings.from_environment(), gpus=launch.gpus)
        return replace(launch, environment={**of_the_cluster, **spec_environment(self._stage, self._frozen.spec)})

    def _clear(self, launches: list[LaunchEntry], say: Callable[[str], None]) -> None:
        """Delete what the work's launches left. The work is done: a cluster that is away does not take that back."""
        for entry in reversed(launches):
            try:
                self._delete(entry)
            except NightshiftError as err:
                say(f"{_kind(entry)} {entry.name} may be left behind: {err}")
                return

    def _delete(self, entry: LaunchEntry) -> None:
        self._submitter.delete(entry.name, _kind(entry))


def pod_environment(cluster: Cluster, settings: Settings, *, gpus: int) -> dict[str, str]:
    """Return what the installation tells every stage's process; what the cluster's file says of the same name goes first."""
    known = {"MLFLOW_TRACKING_URI": settings.mlflow_uri}
    version = cluster.code_version(gpus=gpus)
    if version is not None:
        known["NIGHTSHIFT_CODE_VERSION"] = version
    if settings.model_packages:
        known["NIGHTSHIFT_MODEL_PACKAGES"] = ",".join(settings.model_packages)
    return {name: value for name, value in known.items() if name not in cluster.environment}


def work_at(address: StageAddress) -> Work:
    """Return the work of an address as its newest launch was given it.

    Raises:
        StageEndedError: there is no launch.
    """
    launches = Launches(address).all()
    if not launches:
        verdict = Verdict(action=Action.RETRY, reason=f"the launches of {address.uri} are gone", code="launch.missing")
        raise StageEndedError(verdict)
    request = address.request(launches[-1].attempt_id)
    return Work(
        fingerprint=request.fingerprint,
        inputs=request.inputs,
        parameters=_plain(request.parameters),
        code_version=request.code_version,
        code_files=request.code_files,
    )


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name != "elastic"}


def _kind(entry: LaunchEntry) -> str:
    return "Job" if entry.nodes > 1 else "Pod"


def _by_hand(request: StageRequest, entry: LaunchEntry) -> str:
    return f"python -m training.stages.{request.stage} {entry.request_uri}"


def _as_ended(seen: LaunchStatus) -> Ended:
    return Ended(exit_code=1 if seen.exit_code is None else seen.exit_code, seconds=0.0, code=seen.code, words=seen.words)
