"""One thread, and a loop on a small model."""

from tests.unit.training.engine.conftest import _one_thread, bench, process_group

__all__ = ["_one_thread", "bench", "process_group"]
