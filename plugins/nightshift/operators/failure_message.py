"""What a failed try says stays in XCom, where the note of its run finds it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from training.sanitizing import masked

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

logger = logging.getLogger(__name__)

FAILURE: Final = "failure"
"""Key in XCom."""
MAX_CHARS: Final = 1000


@contextmanager
def noted_failure(context: Context, *kinds: type[Exception]) -> Iterator[None]:
    """Keep the text of an error of one of these kinds, and let it pass."""
    try:
        yield
    except kinds as err:
        try:
            context["ti"].xcom_push(key=FAILURE, value=masked(str(err))[:MAX_CHARS])
        except Exception as why:
            logger.warning("the run's note will not say why it failed: %s", why)
        raise
