"""Translation of SlateDB's errors to this package's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ... import errors
from . import ffi


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Translate the binding's errors to this package's."""
    u = ffi.public()
    try:
        yield
    except u.Error.Closed as error:
        if error.reason is u.CloseReason.FENCED:
            raise errors.StoreFenced(f"another process writes to {url} now; this one must stop", url=url) from error
        raise errors.StoreError(f"the store {url} is closed: {error.message}", url=url) from error
    except u.Error.Data as error:
        text = f"the store {url} is damaged: {error.message}"
        raise errors.CorruptRecord(text, url=url, key=b"", offset=0) from error
    except (u.Error, u.InternalError) as error:
        raise errors.StoreError(f"the store {url} failed: {error}", url=url) from error
