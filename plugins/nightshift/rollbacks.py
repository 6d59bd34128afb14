"""Alias of an earlier release, for users' DAG files: `nightshift.wiring.rollback`."""

from nightshift.wiring.rollback import rollback_dag

__all__ = ["rollback_dag"]
