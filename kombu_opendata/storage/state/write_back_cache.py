"""A write-back cache in front of the store: new values remain in memory until a checkpoint has written them."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

V = TypeVar("V")

#: memory of an entry besides its name and value
_OVERHEAD_BYTES = 200
#: names without a stored value that are remembered
_MAX_ABSENT = 65_536


class WriteBackCache(Generic[V]):
    """Values by name. Values that the store lacks remain; the others are cached up to a bound in bytes.

    The value None means that the store has none, which differs from an unknown value. A caller that needs many values
    together holds their names: these values are not evicted, and do not count for the bound.

    Attributes:
        cache_bytes: bound of the values that the store has.
        size_bytes: the size of the cached values that the store has, too.
        complete_since_ms: every value that was put since then, and not dropped, is in memory.
    """

    def __init__(self, size_of: Callable[[V], int]) -> None:
        self.cache_bytes = 16 << 20
        self.complete_since_ms = 0
        self._size_of = size_of
        self._pending: dict[bytes, tuple[V | None, int]] = {}
        self._flushing: dict[bytes, tuple[V | None, int]] = {}
        self._hot: OrderedDict[bytes, tuple[V, int]] = OrderedDict()
        self._absent: OrderedDict[bytes, None] = OrderedDict()
        self._holders: Counter[bytes] = Counter()
        self._held: dict[bytes, tuple[V | None, int]] = {}
        self.size_bytes = 0

    @property
    def is_dirty(self) -> bool:
        return bool(self._pending)

    def find(self, name: bytes) -> tuple[bool, V | None]:
        """Return True if the value is known, and the value."""
        pending, hot, held, flushing = self._pending, self._hot, self._held, self._flushing
        item = pending.get(name) or hot.get(name) or held.get(name) or flushing.get(name)
        return (self._is_absent(name), None) if item is None else (True, item[0])

    def _is_absent(self, name: bytes) -> bool:
        """Return True if the store is known to have no value, and none is in memory."""
        return name in self._absent

    def is_pending(self, name: bytes) -> bool:
        """Return True if the next checkpoint writes a value of this name."""
        item = self._pending.get(name)
        return item is not None and item[0] is not None

    def put(self, name: bytes, value: V | None, at_ms: int = 0) -> V | None:
        """Set a value, or None to delete it, for the next checkpoint; return the pending value that it replaces."""
        replaced = self.discard(name)
        self._pending[name] = (value, at_ms)
        return replaced

    def discard(self, name: bytes) -> V | None:
        """Remove a value, and return it if it is pending. If the store has one, the caller deletes it there."""
        self.forget(name)
        item = self._pending.pop(name, None)
        return None if item is None else item[0]

    def keep(self, name: bytes, value: V | None) -> None:
        """Cache the store's value, or its absence."""
        if not self.find(name)[0]:
            self._keep(name, value, 0)

    def hold(self, names: Iterable[bytes]) -> None:
        """Do not evict these values, known or not yet, until :meth:`release`."""
        for name in names:
            self._holders[name] += 1
            item = self._hot.get(name)
            if item is not None or name in self._absent:
                self.forget(name)
                self._held[name] = item or (None, 0)

    def release(self, names: Iterable[bytes]) -> None:
        """Undo :meth:`hold`."""
        for name in names:
            self._holders[name] -= 1
            if not self._holders[name]:
                del self._holders[name]
                item = self._held.pop(name, None)
                if item is not None:
                    self._keep(name, *item)

    def evicted(self, value: V) -> None:
        """Note that a value is no longer in memory, because others need its place."""

    def begin_flush(self) -> Mapping[bytes, V | None]:
        """Begin a checkpoint; return the values that it must write."""
        self._flushing, self._pending = self._pending, {}
        return {name: value for name, (value, _at) in self._flushing.items()}

    def end_flush(self) -> None:
        """End a checkpoint, which is in the store."""
        flushed, self._flushing = self._flushing, {}
        for name, (value, at_ms) in flushed.items():
            if value is not None and name not in self._pending:
                self._keep(name, value, at_ms)

    def forget(self, name: bytes) -> None:
        self._absent.pop(name, None)
        self._held.pop(name, None)
        item = self._hot.pop(name, None)
        if item is not None:
            self.size_bytes -= self._cost(name, item[0])

    def _cost(self, name: bytes, value: V) -> int:
        return len(name) + self._size_of(value) + _OVERHEAD_BYTES

    def _keep(self, name: bytes, value: V | None, at_ms: int) -> None:
        """Cache the store's value of a name that is in none of the dictionaries."""
        if name in self._holders:
            self._held[name] = (value, at_ms)
            return
        if value is None:
            self._absent[name] = None
            if len(self._absent) > _MAX_ABSENT:
                self._absent.popitem(last=False)
            return
        cost = self._cost(name, value)
        if cost > self.cache_bytes // 2:  # it would evict all others
            self.complete_since_ms = max(self.complete_since_ms, at_ms + 1)
            return
        self._hot[name] = (value, at_ms)
        self.size_bytes += cost
        while self.size_bytes > self.cache_bytes and self._hot:
            oldest, (evicted, put_at_ms) = self._hot.popitem(last=False)
            self.size_bytes -= self._cost(oldest, evicted)
            self.complete_since_ms = max(self.complete_since_ms, put_at_ms + 1)
            self.evicted(evicted)
