"""Alias of an earlier release: a supervisor from before an update names this when it restarts services."""

from devstack.sqlite import CONNECT_ARGS

__all__ = ["CONNECT_ARGS"]
