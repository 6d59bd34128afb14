"""The two budgets of a task."""

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.definitions.retry_policy import RetryDecision
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from nightshift.execution.retries import BudgetRetryPolicy, InfrastructureError
from nightshift.operators.stage import StageFailedError

FAILED = StageFailedError("storage does not answer")


@pytest.fixture
def context() -> Any:
    # A dict has the two calls of the task's state store that the policy makes, but for the name of one.
    class Kept(dict[str, Any]):
        set = dict.__setitem__

    return {"task_state_store": Kept()}


def ask(policy: BudgetRetryPolicy, context: Any, error: BaseException = FAILED, *, max_tries: int = 10) -> RetryDecision:
    return policy.evaluate(error, try_number=1, max_tries=max_tries, context=context)


def test_failures_are_tried_again_until_the_users_budget_is_spent(context: Any) -> None:
    policy = BudgetRetryPolicy(failures=2, backoff=timedelta(seconds=10))
    assert [ask(policy, context).action for _ in range(3)] == [RetryAction.RETRY, RetryAction.RETRY, RetryAction.FAIL]


def test_the_spent_budget_is_named(context: Any) -> None:
    decision = ask(BudgetRetryPolicy(failures=0, backoff=timedelta(seconds=10)), context)
    assert decision.reason == "failed 1 times, 0 retries are allowed (retries.failures)"


def test_lost_attempts_do_not_count(context: Any) -> None:
    policy = BudgetRetryPolicy(failures=1, backoff=timedelta(seconds=10))
    for _ in range(5):
        assert ask(policy, context, InfrastructureError("a newer attempt has the work")).action is RetryAction.RETRY
    assert ask(policy, context).action is RetryAction.RETRY
    assert ask(policy, context).action is RetryAction.FAIL


def api_server_error(status: int | None) -> AirflowRuntimeError:
    detail = {"status_code": status, "message": "[Errno 111] Connection refused", "exception_type": "ConnectError"}
    return AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))


@pytest.mark.parametrize("status", [None, 500, 503])
def test_outages_of_the_api_server_do_not_count(context: Any, status: int | None) -> None:
    policy = BudgetRetryPolicy(failures=0, backoff=timedelta(seconds=10))
    decisions = [ask(policy, context, api_server_error(status)) for _ in range(3)]
    assert [decision.action for decision in decisions] == [RetryAction.RETRY] * 3
    assert ask(policy, context).action is RetryAction.FAIL


def test_request_that_the_api_server_refuses_counts(context: Any) -> None:
    policy = BudgetRetryPolicy(failures=0, backoff=timedelta(seconds=10))
    assert ask(policy, context, api_server_error(403)).action is RetryAction.FAIL
    other = AirflowRuntimeError(ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND, detail={"key": "x"}))
    assert ask(policy, context, other).action is RetryAction.FAIL


def test_a_clear_starts_over(context: Any) -> None:
    policy = BudgetRetryPolicy(failures=1, backoff=timedelta(seconds=10))
    assert [ask(policy, context, max_tries=10).action for _ in range(2)] == [RetryAction.RETRY, RetryAction.FAIL]
    # Airflow adds a clear's tries to the number of tries, and keeps the state store.
    assert [ask(policy, context, max_tries=12).action for _ in range(2)] == [RetryAction.RETRY, RetryAction.FAIL]


def test_the_backoff_doubles_up_to_an_hour(context: Any) -> None:
    policy = BudgetRetryPolicy(failures=100, backoff=timedelta(minutes=10))
    delays = [ask(policy, context).retry_delay for _ in range(20)]
    assert delays[:4] == [timedelta(minutes=minutes) for minutes in (10, 20, 40, 60)]
    assert delays[-1] == timedelta(hours=1)


def test_a_backoff_of_more_than_an_hour_stays_as_it_is(context: Any) -> None:
    policy = BudgetRetryPolicy(failures=100, backoff=timedelta(days=3650))
    assert [ask(policy, context).retry_delay for _ in range(2)] == [timedelta(days=3650)] * 2
