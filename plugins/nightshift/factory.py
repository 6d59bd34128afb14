"""Alias of an earlier release, for users' DAG files: `nightshift.wiring.pipeline`."""

from nightshift.wiring.pipeline import pipeline_dag

__all__ = ["pipeline_dag"]
