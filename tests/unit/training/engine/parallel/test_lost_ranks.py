"""Which ranks are lost after a broken collective: those whose process has ended, at once; those that do not answer, after a while."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from training.engine.parallel import lost_ranks as roll_call
from training.engine.parallel.gang import Gang
from training.engine.parallel.lost_ranks import Absent, RollCall
from training.errors import PeerLostError
from training.process.identity import Process, pid_namespace, start_of


@contextmanager
def other_process() -> Iterator[tuple[Process, subprocess.Popen[bytes]]]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield Process(pid_namespace(), child.pid, start_of(child.pid) or 0), child
    finally:
        child.kill()
        child.wait()


def test_rank_whose_process_has_ended_is_named_though_nobody_waits_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    # A rank that is named by the end of its process needs no time at all: the limit would never be reached.
    monkeypatch.setattr(roll_call, "ANSWER_SECONDS", float("inf"))
    with other_process() as (process, child):
        call = RollCall(dist.HashStore(), 0, (Process.this(), process, Process.this()))
        child.kill()
        assert call.absent() == Absent((1,), have_ended=True), "also before its parent has asked for it"


def test_rank_on_another_node_learns_whose_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "ANSWER_SECONDS", float("inf"))
    store = dist.HashStore()
    with other_process() as (process, child):
        near = RollCall(store, 0, (Process.this(), process, Process.this()))
        far = RollCall(store, 2, tuple(replace(one, namespace="0" * 16) for one in near.processes))
        child.kill()
        near.absent()
    assert far.absent() == Absent((1,), have_ended=True)


def test_rank_that_runs_and_does_not_answer_is_absent_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "ANSWER_SECONDS", 0.1)
    store = dist.HashStore()
    processes = (Process.this(),) * 3
    RollCall(store, 1, processes).answer()
    assert RollCall(store, 0, processes).absent() == Absent((2,))


def test_nobody_is_absent_where_all_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "ANSWER_SECONDS", 60.0)
    store = dist.HashStore()
    RollCall(store, 1, (Process.this(),) * 2).answer()
    assert RollCall(store, 0, (Process.this(),) * 2).absent() == Absent()


def test_process_of_another_namespace_is_not_said_to_have_ended() -> None:
    process = Process("0" * 16, 2**22 - 1, 77)
    assert not process.has_ended()
    assert replace(process, namespace=pid_namespace()).has_ended()
    assert not replace(process, namespace=pid_namespace(), start_ticks=0).has_ended(), "its start is not known"


def test_pid_that_another_process_has_by_now_belongs_to_an_ended_one() -> None:
    this = Process.this()
    assert this.pid == os.getpid()
    assert not this.has_ended()
    assert replace(this, start_ticks=this.start_ticks - 1).has_ended()
    assert Process.from_text(this.to_text()) == this


@pytest.mark.parametrize("have_ended", [True, False], ids=["ended", "silent"])
def test_error_names_the_lost_rank_its_node_the_step_and_how_it_was_found(monkeypatch: pytest.MonkeyPatch, have_ended: bool) -> None:
    monkeypatch.setattr(RollCall, "absent", lambda self: Absent((1,), have_ended=have_ended))
    call = RollCall(dist.HashStore(), 0, (Process.this(),) * 2)
    gang = Gang(0, 2, torch.device("cpu"), None, ("n0", "n1"), call)
    error = gang.lost(PeerLostError("peer.lost", "broken"), 7)
    how = "its process has ended" if have_ended else "no answer within 5 s (NIGHTSHIFT_COLLECTIVE_TIMEOUT_SECONDS = 120 s)"
    assert str(error.message) == f"rank 1 (node n1) is lost after step 7: {how}; broken"
    assert error.details == {"ranks": [1]}
