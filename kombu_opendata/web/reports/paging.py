"""Parts of reports: pages of a list, and bars of a chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

T = TypeVar("T")
#: rows of a page
PAGE = 50


@dataclass(frozen=True)
class Paged(Generic[T]):
    """A page of rows.

    Attributes:
        matching: the number of rows of all pages.
        page: its number, from 1.
        pages: the number of pages, at least 1.
    """

    rows: tuple[T, ...]
    matching: int
    page: int
    pages: int


def paged(rows: Sequence[T], page: int) -> Paged[T]:
    """Return the page with this number, or the nearest that exists."""
    pages = max(1, -(-len(rows) // PAGE))
    page = min(max(page, 1), pages)
    return Paged(tuple(rows[(page - 1) * PAGE : page * PAGE]), len(rows), page, pages)


@dataclass(frozen=True)
class Bar:
    """The number of failures, or of messages that are due, from ``start`` to the next bar."""

    start: datetime
    count: int
