"""The cache of a database: data blocks, and the indexes and filters of its files.

A reader and a later writer of the database may share one. Files never change and their names are never reused, so the
content of the cache remains valid.
"""

from __future__ import annotations

from typing import Any

from . import ffi
from .object_store import Location
from .slate_settings import INDEX_CACHE_BYTES, SlateSettings

#: the id of the only database in a cache
_ID = 1
_BLOCKS_IN_A_FOLDER, _BLOCKS_ELSEWHERE = 8 << 20, 32 << 20


class BlockCache:
    """The cache of one database, or none if the settings disable it."""

    def __init__(self, settings: SlateSettings, location: Location) -> None:
        blocks = settings.block_cache_bytes
        if blocks is None:
            blocks = _BLOCKS_ELSEWHERE if location.folder is None else _BLOCKS_IN_A_FOLDER
        self._cache = ffi.public().DbCache.new_split_cache(_moka(blocks), _moka(INDEX_CACHE_BYTES)) if blocks else None

    def join(self, builder: Any) -> None:
        """Connect the database of one of the binding's builders to the cache."""
        if self._cache is not None:
            builder.with_db_cache(self._cache, _ID)
        else:
            builder.with_db_cache_disabled()


def _moka(capacity: int) -> Any:
    """Return a cache with this capacity in bytes."""
    u = ffi.public()
    return u.DbCache.new_moka_cache(u.MokaCacheOptions(max_capacity=capacity, time_to_live=None, time_to_idle=None))
