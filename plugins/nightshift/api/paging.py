"""Lists in pages: an opaque cursor names the last item that the client has."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Final, TypeVar

from fastapi import Query

from nightshift.queries.schemas import Page
from training.errors import DeniedError, shown

Item = TypeVar("Item")
MAX_ITEMS: Final = 200
MAX_CURSOR_CHARS: Final = 512

Limit = Annotated[int, Query(ge=1, le=MAX_ITEMS, description="Items of a page at most.")]
Cursor = Annotated[str | None, Query(max_length=MAX_CURSOR_CHARS, description="`next` of the page before.")]


def cursor_of(key: str) -> str:
    """Return the cursor of the item with this key."""
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def key_of(cursor: str) -> str:
    """Return the key in a cursor.

    Raises:
        DeniedError: `cursor.invalid`.
    """
    try:
        key = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as err:
        raise invalid(cursor) from err
    if "\0" in key:
        # PostgreSQL takes no text with it.
        raise invalid(cursor)
    return key


def invalid(cursor: str) -> DeniedError:
    """Return the error for a cursor that no page gave."""
    return DeniedError("cursor.invalid", f"cursor {shown(cursor)} is not one of this list", hint="begin without a cursor")


def page_in_parts(
    read: Callable[[str | None, int], Sequence[Item]], key: Callable[[Item], str], cursor: str | None, limit: int
) -> Page[Item]:
    """Return the page after a cursor, of a list that is not read as a whole.

    Args:
        read: returns so many items at most, from the one with a key on; with None from the first one.
        key: of an item, unique in the list.

    Raises:
        DeniedError: `cursor.invalid`, no item has the cursor's key.
    """
    first = None if cursor is None else key_of(cursor)
    # The cursor's own item comes first, and one behind the page says that there are more.
    return page_of(read(first, limit + 2), key, cursor, limit)


def page_of(items: Sequence[Item], key: Callable[[Item], str], cursor: str | None, limit: int) -> Page[Item]:
    """Return the page after a cursor.

    Args:
        key: of an item, unique in the list.

    Raises:
        DeniedError: `cursor.invalid`, no item has the cursor's key.
    """
    first = 0
    if cursor is not None:
        wanted = key_of(cursor)
        first = next((place + 1 for place, item in enumerate(items) if key(item) == wanted), -1)
        if first < 0:
            raise invalid(cursor)
    found = list(items[first : first + limit])
    more = first + limit < len(items)
    return Page(items=found, next=cursor_of(key(found[-1])) if more else None)
