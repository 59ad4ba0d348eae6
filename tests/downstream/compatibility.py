"""Rows of docs/compatibility.md, which test modules declare beside the tests that prove them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """Result of the tests of one package: ``COMPATIBILITY = Row(…)`` at the top level of a test module.

    A module with several packages declares a list. ``tools/site/compatibility_page.py`` reads the declarations without
    an import, so the values are literal strings, in Markdown. A row may only claim what its module's tests assert.

    Attributes:
        package: the name of the distribution. Its version is the pinned one, of the extra ``downstream`` or of a file
            in ``requirements``.
        tried: the parts of it that the tests use.
        result: what works, and what does not.
        settings: what a user sets; empty if nothing is needed.
        version: for software that is not installed, the version whose documentation the tests follow.
    """

    package: str
    tried: str
    result: str
    settings: str = ""
    version: str = ""
