"""Keeps the services up for a command that runs nights unattended: what ended without a command's order is started again."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from devstack.lifecycle import start
from devstack.shutdown import serving
from devstack.supervisor_state import is_stop_noted
from nightshift.settings import Settings


class Keeper:
    """Call it to learn whether the services run; inside its `with` block a call starts them again if their supervisor was killed."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._is_active = False

    def __enter__(self) -> Self:
        self._is_active = True
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        # A command that ends starts nothing: the signal that ended it may have ended the services too.
        self._is_active = False

    def __call__(self) -> bool:
        """Return whether the services run.

        Raises:
            NightshiftError: those of `lifecycle.start`.
        """
        home = self._settings.home
        if serving(home):
            return True
        if not self._is_active or is_stop_noted(home):
            return False
        self._say("the supervisor of the services died, and no command stopped it; starting the services again")
        start(self._settings, self._say, unless_stopped=True)
        return True
