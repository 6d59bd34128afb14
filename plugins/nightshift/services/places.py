"""Opens the store and the database as every stage will: what is wrong with them is known before anything is started."""

from __future__ import annotations

import secrets

from nightshift.settings import SOURCE, Settings
from training.errors import Problem, SpecError
from training.store import Store


def require_places(settings: Settings) -> None:
    """Return if the installation's folder, its store and its database can be used.

    Raises:
        NightshiftError: `settings.path`, `store.location`, `storage.denied`, `storage.unavailable`, `database.url`, `database.damaged` or
            `database.unavailable`, with the place and what to do.
    """
    require_home(settings)
    bucket = Store(settings.store_uri).bucket
    if settings.store_uri.startswith("file:"):
        # A bucket's answer may take minutes of retries; a folder's is there at once.
        key = f"probe/{secrets.token_hex(8)}"
        bucket.create(key, b"")
        bucket.delete(key)
    # SQLAlchemy takes a while to load, and `make status` needs none of it.
    from training.tables import connect

    connect(settings.database_url)


def require_home(settings: Settings) -> None:
    """Return if the installation's folder can be one.

    Raises:
        SpecError: `settings.path`, it is a file.
    """
    if settings.home.exists() and not settings.home.is_dir():
        message, hint = f"{str(settings.home)!r} is a file", "name a folder, or move the file away"
        raise SpecError(SOURCE, [Problem(code="settings.path", field="NIGHTSHIFT_HOME", message=message, hint=hint)])
