"""Alias of an earlier release: services that a supervisor of before an update starts again name this."""

from devstack.sqlite import CONNECT_ARGS

__all__ = ["CONNECT_ARGS"]
