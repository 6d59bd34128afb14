"""Alias of an earlier release, for users' DAG files: `nightshift.wiring.housekeeping`."""

from nightshift.wiring.housekeeping import housekeeping_dag

__all__ = ["housekeeping_dag"]
