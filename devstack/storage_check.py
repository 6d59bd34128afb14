"""Opens the store and the database as every stage will: what is wrong with them is known before anything is started."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from nightshift.settings import SOURCE, Settings
from training.errors import DeniedError, spec_error

ANOTHER_HOME: Final = "set NIGHTSHIFT_HOME to a folder of your own, which may be new"


def require_places(settings: Settings) -> None:
    """Return if the installation's folder, its store and its database can be used.

    Raises:
        NightshiftError: `settings.path`, `store.location`, `storage.denied`, `storage.unavailable`, `database.url`, `database.damaged` or
            `database.unavailable`, with the place and what to do.
    """
    require_home(settings)
    bucket = settings.store().bucket
    if settings.store_uri.startswith("file:"):
        # A bucket's answer may take minutes of retries; a folder's is there at once.
        key = f"probe/{secrets.token_hex(8)}"
        bucket.create(key, b"")
        bucket.delete(key)
    # SQLAlchemy takes a while to load, and `make status` needs none of it.
    settings.database()


def require_home(settings: Settings) -> None:
    """Return if the installation's folder can be one. It is closed to other users later, so a folder that others use is refused.

    Raises:
        SpecError: `settings.path`, it is a file.
        DeniedError: `home.owner`, it belongs to another user; `home.shared`, every user may write to it, as to /tmp.
    """
    if settings.home.exists() and not settings.home.is_dir():
        message, hint = f"{str(settings.home)!r} is a file", "name a folder, or move the file away"
        raise spec_error(SOURCE, "settings.path", message, hint=hint, field="NIGHTSHIFT_HOME")
    if not settings.home.exists() or _is_installation(settings.home):
        return
    found = settings.home.stat()
    if found.st_uid != os.geteuid():
        raise DeniedError("home.owner", f"{settings.home} belongs to another user (uid {found.st_uid})", hint=ANOTHER_HOME)
    if found.st_mode & (stat.S_IWOTH | stat.S_ISVTX):
        raise DeniedError("home.shared", f"{settings.home} is a folder that every user may write to", hint=ANOTHER_HOME)


def _is_installation(home: Path) -> bool:
    """Return whether this user's services were started here: mounts of a Windows or network disk show owners and modes of their own."""
    secrets = home / "credentials.json"
    return secrets.is_file() and not secrets.is_symlink() and secrets.stat().st_uid == os.geteuid()
