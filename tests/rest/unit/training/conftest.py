"""The databases that our tables may be in."""

from tests.unit.training.conftest import empty_database, killable_postgres, postgres

__all__ = ["empty_database", "killable_postgres", "postgres"]
