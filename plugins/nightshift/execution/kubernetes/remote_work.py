"""One stage's work in the cluster, as its task sees it each time that it looks: what is known, what to start, what to wait for.

Nothing is remembered between two looks but the launches in the store. A task that is killed anywhere and tried again, two workers at once,
another run at the same work: all read the same launches, look at the same names in the cluster, and continue from there.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from nightshift.execution.attempt_end import PARTIAL, UNPLACED, Action, AttemptEnd, Ended, StageEndedError, judge
from nightshift.execution.backend import ELASTIC, StageTask, spec_environment
from nightshift.execution.kubernetes.client import Submitter
from nightshift.execution.kubernetes.config import Cluster
from nightshift.execution.kubernetes.launch_request import Kind, Launch, kind_of, launch_name, launch_of
from nightshift.execution.kubernetes.slow_nodes import NOTHING, Avoidance, avoidance
from nightshift.execution.kubernetes.status import LaunchStatus
from nightshift.execution.kubernetes.timeouts import LaunchTimeouts, limits_of
from nightshift.execution.relaunch_budget import Relaunch, Relaunches, next_relaunch, resumption
from nightshift.settings import Settings
from training.contracts import StageResult
from training.errors import NightshiftError, StoreError
from training.runtime.attempt_errors import error_of_ended
from training.spec.rules.training import smaller_sizes
from training.stage_table import TABLE, TRAININGS, Need
from training.store.launches import PREEMPTED, Cause, Launches, LaunchRecord
from training.store.work_folder import new_attempt_id


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedLaunch:
    """A launch to be watched: what the trigger needs to know."""

    number: int
    name: str
    kind: Kind
    namespace: str
    limits: LaunchTimeouts
    connection: str | None
    in_cluster: bool | None


class RemoteWork:
    """One piece of work in the cluster."""

    def __init__(self, task: StageTask, *, generation: str, cluster: Cluster, submitter: Submitter) -> None:
        """Take the work of a task; `generation` changes when the task is cleared, and its budget starts again."""
        self._task = task
        self._stage = task.work.stage
        self._generation = generation
        self._cluster = cluster
        self._submitter = submitter
        self._spec = task.resolved.spec
        self._work_folder = task.work.folder
        self._launches = Launches(task.work.folder)
        self._stopped = False

    def advance(self, *, watched: int = 0, reported: LaunchStatus | None = None) -> StageResult | WatchedLaunch:
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
            if last is not None:
                self._show(last)
            result = self._work_folder.result()
            if result is not None:
                self._clear(launches)
                return result
            if last is None:
                self._claim([], "first")
                continue
            ended = self._launches.end_of(last)
            if ended is None:
                status = self._look(last, reported if last.number == watched else None)
                if status.phase != "ended":
                    return self._waiting(launches, is_backing_off=status.code == PARTIAL)
                self._task.say(f"launch {last.number} ({last.name}) ended: {status.words}")
                self._launches.record_end(last, status.to_json())
                continue
            seen = LaunchStatus.from_json(ended)
            log = self._submitter.last_lines(seen.failed)
            self._delete(last)
            result = self._work_folder.result()
            if result is not None:
                return result
            # A try that follows a killed one keeps to the back-off; a task that a person clears begins again.
            was_released = seen.code == PARTIAL and last.is_of(self._task.run.owner, self._generation)
            is_mine = last.number == watched or self._is_of_this_try(last) or was_released
            relaunch = self._relaunch(launches, seen, log) if is_mine else None
            self._claim(launches, relaunch.cause if relaunch else "again", ended=seen, relaunch=relaunch)

    def _show(self, entry: LaunchRecord) -> None:
        """Have Airflow show a launch's manifest: it renders the task again each time that it resumes."""
        # A name that the launch was placed by may have left the cluster's file since. The work that is under way does not need it.
        with suppress(KeyError):
            self._submitter.show(self._launch(entry))

    def stop(self) -> None:
        """Delete the launch that is under way, if it is this task's own, and start no other: it saves a checkpoint and ends."""
        self._stopped = True
        launches = self._launches.all()
        if launches and self._launches.end_of(launches[-1]) is None and self._is_of_this_try(launches[-1]):
            self._delete(launches[-1])

    def _look(self, entry: LaunchRecord, reported: LaunchStatus | None) -> LaunchStatus:
        """Return what is known of a launch; submit it where it was claimed and nothing came of it."""
        kind = kind_of(self._stage)
        status = self._submitter.look(entry.name, kind)
        if status.phase == "ended":
            return status
        if reported is not None and reported.phase == "ended" and not self._is_outdated(reported, entry, status):
            # The trigger gave up on it, or saw an end of which nothing is left.
            return reported
        if status.phase == "waiting" and entry.nodes > 1:
            self._submitter.ensure_service(self._launch(entry))
        if status.phase != "absent":
            return status
        if self._launches.has_begun(entry):
            return replace(status, phase="ended", words=f"{kind} {entry.name} is missing: deleted, or lost with its node")
        self._check_not_stopped()
        if reported is None and entry.begins_at and datetime.fromisoformat(entry.begins_at) > datetime.now(UTC):
            return LaunchStatus(phase="waiting", code=PARTIAL)
        self._submitter.submit(self._launch(entry))
        if self._launches.end_of(entry) is not None:
            # Another worker saw the whole of it between our look and our create: what we made would do nothing, and stay behind.
            self._delete(entry)
            return LaunchStatus(phase="ended", code="pod.gone", words="it had ended before it was requested again")
        return LaunchStatus(phase="waiting")

    def _is_outdated(self, reported: LaunchStatus, entry: LaunchRecord, status: LaunchStatus) -> bool:
        """Return whether a launch that the trigger gave up on for want of a place has one, or waits for its queue after it ran.

        A trigger that a new triggerer started again does not know that the launch has run, and that it may not shrink.
        """
        if reported.code not in (PARTIAL, UNPLACED):
            return False
        return status.phase == "running" or (reported.code == UNPLACED and status.phase == "waiting" and self._launches.has_begun(entry))

    def _check_not_stopped(self) -> None:
        if self._stopped:
            raise StageEndedError(AttemptEnd(action=Action.GIVE_UP, reason="stopped before it began", code="stage.stopped"))

    def _is_of_this_try(self, entry: LaunchRecord) -> bool:
        return entry.is_of(self._task.run.owner, self._generation) and entry.try_number == self._task.run.try_number

    def _relaunch(self, launches: list[LaunchRecord], ended: LaunchStatus, log: list[str]) -> Relaunch:
        """Return what the next launch is to be, after a short pause; raise if there is to be none. A long one is the triggerer's."""
        last = launches[-1]
        exit_code = 1 if ended.exit_code is None else ended.exit_code
        seen = Ended(exit_code=exit_code, seconds=0.0, code=ended.code, words=ended.words)
        end = judge(seen, error_of_ended(self._work_folder, last.attempt_id, exit_code))
        relaunch = next_relaunch(end, self._relaunches(launches), self._spec, self._stage, name=last.name)
        if relaunch.cause == "placement":
            waited = datetime.now(UTC) - datetime.fromisoformat(self._waiting_since(last, ended))
            if waited + timedelta(seconds=relaunch.pause_seconds) > self._cluster.schedule_timeout:
                reason = f"[pod.unschedulable] {ended.words}; no place for all members within schedule_timeout"
                raise StageEndedError(AttemptEnd(action=Action.FAIL, reason=reason, code="pod.unschedulable"))
        # Each deferral of a task replaces the triggerer's part of its log.
        for line in log:
            self._task.say(line)
        self._task.warn(f"{relaunch.words}; {resumption(self._work_folder)}")
        if relaunch.cause != "placement":
            time.sleep(relaunch.pause_seconds)
        return relaunch

    def _waiting_since(self, last: LaunchRecord, ended: LaunchStatus) -> str:
        """Return since when the work waits for a place: a launch that ran ended the wait before it."""
        earlier = "" if self._launches.has_begun(last) else last.waiting_since
        return earlier or ended.waiting_since or datetime.now(UTC).isoformat(timespec="seconds")

    def _claim(
        self, launches: list[LaunchRecord], cause: Cause, *, ended: LaunchStatus | None = None, relaunch: Relaunch | None = None
    ) -> None:
        """Claim the next launch. If another operator was faster, its launch is the next one, and the caller finds it."""
        self._check_not_stopped()
        task = self._task
        last = launches[-1] if launches else None
        number = (last.number if last else 0) + 1
        preemptions = (last.preemptions if last else 0) + (ended is not None and ended.code == PREEMPTED)
        nodes = self._nodes(last, cause, ended)
        spot = self._is_spot(preemptions)
        avoided = self._avoidance(launches, cause, ended, nodes)
        attempt_id = new_attempt_id()
        # The cluster reports that the holder of the work has ended.
        elastic = {ELASTIC: True} if self._stage in TRAININGS and self._smaller_sizes() else {}
        request = task.request(attempt_id=attempt_id, takeover_epoch=self._launches.holder_epoch(), **elastic)
        entry = LaunchRecord(
            attempt_id=attempt_id,
            request_uri=self._work_folder.write_request(request),
            name=launch_name(self._spec.name, task.work.stage, attempt_id, number),
            nodes=nodes,
            spot=spot,
            cause=cause,
            owner=task.run.owner,
            try_number=task.run.try_number,
            generation=self._generation,
            preemptions=preemptions,
            avoided_nodes=avoided.nodes,
            avoidance_tries=avoided.tries,
        )
        if last is not None and ended is not None and relaunch is not None and cause == "placement":
            begins_at = datetime.now(UTC) + timedelta(seconds=relaunch.pause_seconds)
            since = self._waiting_since(last, ended)
            entry = replace(entry, begins_at=begins_at.isoformat(timespec="seconds"), waiting_since=since)
        if self._launches.claim(entry, after=number - 1):
            where = f"{nodes} nodes" if nodes > 1 else "one pod"
            if avoided.nodes:
                where += f" {'without' if avoided.tries else 'preferably not on'} {', '.join(avoided.nodes)} (slow before)"
            by_hand = f"python -m training.stages.{task.work.stage} {entry.request_uri}"
            task.say(f"launch {number}: {entry.name}, {where}{' on spot nodes' if spot else ''}; to repeat it by hand: {by_hand}")

    def _nodes(self, last: LaunchRecord | None, cause: Cause, ended: LaunchStatus | None) -> int:
        if self._stage not in TRAININGS:
            return 1
        placement = self._spec.train.placement
        if last is None or cause == "again":
            return placement.nodes
        if ended is not None and ended.code == UNPLACED:
            fewer = [size for size in self._smaller_sizes() if size < last.nodes]
            return fewer[0] if fewer else last.nodes
        return last.nodes

    def _avoidance(self, launches: list[LaunchRecord], cause: Cause, ended: LaunchStatus | None, nodes: int) -> Avoidance:
        """Return what the next launch, with so many nodes, leaves out."""
        if self._stage not in TRAININGS or not launches:
            return NOTHING
        try:
            named = [str(found["node"]) for found in self._work_folder.stragglers(launches[-1].attempt_id)]
        except StoreError as err:
            self._task.warn(f"the stragglers of launch {launches[-1].number} are not known: {err}")
            named = []
        used = self._relaunches(launches).infrastructure + (cause == "infrastructure")
        return avoidance(
            launches[-1],
            ended,
            named,
            cause=cause,
            may_shrink=any(size < nodes for size in self._smaller_sizes()),
            relaunches_left=self._spec.retries.infrastructure - used,
        )

    def _relaunches(self, launches: list[LaunchRecord]) -> Relaunches:
        causes = [entry.cause for entry in launches if entry.is_of(self._task.run.owner, self._generation)]
        released = 0 if self._launches.has_begun(launches[-1]) else len(list(takewhile(_is_release, reversed(launches))))
        return Relaunches(infrastructure=causes.count("infrastructure"), memory=causes.count("memory"), releases=released)

    def _is_spot(self, preemptions: int) -> bool:
        if self._stage not in TRAININGS or self._cluster.spot is None or not self._spec.train.placement.spot:
            return False
        return preemptions < self._cluster.spot.fallback_after

    def _smaller_sizes(self) -> list[int]:
        return smaller_sizes(self._spec.train)

    def _waiting(self, launches: list[LaunchRecord], *, is_backing_off: bool) -> WatchedLaunch:
        entry = launches[-1]
        has_begun = self._launches.has_begun(entry)
        was_lost = not all(map(_is_release, launches[1:]))
        can_shrink = was_lost and not has_begun and self._stage in TRAININGS and any(size < entry.nodes for size in self._smaller_sizes())
        return WatchedLaunch(
            number=entry.number,
            name=entry.name,
            kind=kind_of(self._stage),
            namespace=self._cluster.namespace,
            limits=limits_of(
                self._cluster,
                may_shrink=can_shrink,
                waiting_since="" if has_begun else entry.waiting_since,
                begins_at=entry.begins_at if is_backing_off else "",
            ),
            connection=self._cluster.connection,
            in_cluster=self._cluster.in_cluster,
        )

    def _launch(self, entry: LaunchRecord) -> Launch:
        launch = launch_of(
            self._spec,
            self._cluster,
            stage=self._stage,
            name=entry.name,
            attempt_id=entry.attempt_id,
            request_uri=entry.request_uri,
            nodes=entry.nodes,
            spot=entry.spot,
        )
        launch = replace(launch, avoided_nodes=entry.avoided_nodes, excludes_avoided=entry.avoidance_tries > 0)
        of_the_cluster = pod_environment(self._cluster, Settings.from_environment(), self._stage, gpus=launch.gpus)
        return replace(launch, environment={**of_the_cluster, **spec_environment(self._stage, self._spec)})

    def _clear(self, launches: list[LaunchRecord]) -> None:
        """Delete what the work's launches left. The work is done: a cluster that is away does not take that back."""
        for entry in reversed(launches):
            try:
                self._delete(entry)
            except NightshiftError as err:
                self._task.say(f"{kind_of(self._stage)} {entry.name} may be left behind: {err}")
                return

    def _delete(self, entry: LaunchRecord) -> None:
        self._submitter.delete(entry.name, kind_of(self._stage))


def pod_environment(cluster: Cluster, settings: Settings, stage: str, *, gpus: int) -> dict[str, str]:
    """Return the environment variables of a stage's process; values of the cluster's file take precedence."""
    known = {"MLFLOW_TRACKING_URI": settings.mlflow_uri} if Need.MLFLOW in TABLE[stage].services else {}
    version = cluster.code_version(gpus=gpus)
    if version is not None:
        known["NIGHTSHIFT_CODE_VERSION"] = version
    if settings.model_packages:
        known["NIGHTSHIFT_MODEL_PACKAGES"] = ",".join(settings.model_packages)
    return {name: value for name, value in known.items() if name not in cluster.environment}


def _is_release(entry: LaunchRecord) -> bool:
    return entry.cause == "placement"
