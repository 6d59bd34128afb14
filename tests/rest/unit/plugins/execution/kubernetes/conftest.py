"""A double of the Kubernetes API."""

from tests.unit.plugins.execution.kubernetes.conftest import api, known_names, night, spec_with

__all__ = ["api", "known_names", "night", "spec_with"]
