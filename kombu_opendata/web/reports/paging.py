"""Pages of a list that is in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
#: rows of a page
PAGE = 50


@dataclass(frozen=True)
class Paged(Generic[T]):
    """A page.

    Attributes:
        matching: how many rows all pages have.
        page: its number, from 1.
        pages: how many pages there are, at least 1.
    """

    rows: tuple[T, ...]
    matching: int
    page: int
    pages: int


def paged(rows: Sequence[T], page: int) -> Paged[T]:
    """The page with this number, or the nearest that exists."""
    pages = max(1, -(-len(rows) // PAGE))
    page = min(max(page, 1), pages)
    return Paged(tuple(rows[(page - 1) * PAGE : page * PAGE]), len(rows), page, pages)
