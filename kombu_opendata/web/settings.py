"""How a page is set up."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..client.connection_options import Options
from .masking import NAMES


@dataclass(frozen=True)
class WebSettings:
    """Settings of a page, which are the same for everybody who opens it.

    Attributes:
        url: the broker's URL.
        options: of the connections to it.
        read_only: whether nothing can be changed through this page.
        masked_names: parts of the names of arguments and headers whose values are hidden.
        refresh_seconds: how often an open page shows new figures.
    """

    url: str
    options: Options = field(default_factory=Options)
    read_only: bool = False
    masked_names: tuple[str, ...] = NAMES
    refresh_seconds: float = 2.0
