"""Two budgets in one number of tries.

What an operator lives to see of the infrastructure it handles itself. What it does not live to see (its worker or the scheduler dies)
Airflow counts as a try, and asks no policy. So a task has failures + infrastructure retries, and this policy, which is asked about
every exception the operator does raise, ends the task when the user's part is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict

from airflow.sdk import RetryAction, WeightRule
from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError, ErrorType

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

MAX_BACKOFF: Final = timedelta(hours=1)
MAX_DOUBLINGS: Final = 12
SERVER_FAULTS_START: Final = 500


class TaskArguments(TypedDict, total=False):
    """Arguments of every operator of a pipeline."""

    owner: str
    weight_rule: WeightRule
    priority_weight: int
    retries: int
    retry_delay: timedelta
    retry_policy: RetryPolicy
    on_failure_callback: Callable[[Mapping[str, object]], None] | None


class InfrastructureError(AirflowException):
    """An attempt was lost through no fault of the pipeline's: Airflow tries again, and the user's budget is untouched."""


def _api_server_is_away(exception: BaseException) -> bool:
    """Return whether Airflow's own api-server did not answer a task, or answered with a server error."""
    if not isinstance(exception, AirflowRuntimeError) or exception.error.error is not ErrorType.API_SERVER_ERROR:
        return False
    status = (exception.error.detail or {}).get("status_code")
    return status is None or int(status) >= SERVER_FAULTS_START


class BudgetRetryPolicy(RetryPolicy):
    """Counts the failures that the operator raised, in the task's state store."""

    def __init__(self, *, failures: int, backoff: timedelta) -> None:
        """Allow `failures` retries; the first after `backoff`, each later one after twice the time before."""
        self.failures = failures
        self.backoff = backoff

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None) -> RetryDecision:
        """Return FAIL once the user's budget is spent, else RETRY after the backoff, which doubles with each failure."""
        del try_number
        if isinstance(exception, InfrastructureError) or _api_server_is_away(exception):
            return RetryDecision(action=RetryAction.RETRY, retry_delay=self.backoff, reason=f"lost, not failed: {exception}")
        spent = self._count(max_tries, context)
        if spent > self.failures:
            return RetryDecision(
                action=RetryAction.FAIL, reason=f"failed {spent} times, {self.failures} retries are allowed (retries.failures)"
            )
        reason = f"failure {spent}, retry {spent} of {self.failures}"
        return RetryDecision(action=RetryAction.RETRY, retry_delay=self._delay(spent), reason=reason)

    def _delay(self, spent: int) -> timedelta:
        if self.backoff >= MAX_BACKOFF:
            return self.backoff
        doublings: int = min(spent - 1, MAX_DOUBLINGS)
        return min(self.backoff * (1 << doublings), MAX_BACKOFF)

    def _count(self, max_tries: int, context: Context | None) -> int:
        store: Any = None if context is None else context.get("task_state_store")
        if store is None:
            return 1
        # A clear raises max_tries and keeps the store: so the number is part of the key, and a clear starts from zero.
        key = f"failures-{max_tries}"
        spent = int(store.get(key) or 0) + 1
        store.set(key, spent)
        return spent
