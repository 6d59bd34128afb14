"""The tasks of helper DAGs that run a stage's process, as KubernetesPodOperators (`nightshift.operators.pods`)."""

from __future__ import annotations

from nightshift.operators.approval import AnswerOperator
from nightshift.operators.pods import PodTask
from nightshift.operators.repair import RepairOperator
from nightshift.operators.rollback import RollbackOperator


class AnswerPodOperator(AnswerOperator, PodTask):
    """Propagates what a person answered, from a pod."""


class RepairPodOperator(RepairOperator, PodTask):
    """Makes MLflow agree with the ledger, from a pod."""


class RollbackPodOperator(RollbackOperator, PodTask):
    """Makes an earlier version champion again, from a pod."""
