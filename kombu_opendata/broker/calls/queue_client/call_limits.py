"""Limits of the queue client's calls, and checks of them."""

from __future__ import annotations

from ....errors import RequestError

#: maximum number of messages that one Read claims
MAX_QUANTITY = 1000
#: maximum number of rows of a page
MAX_PAGE = 1000
#: maximum lease or delay: thirty days
MAX_MS = 30 * 86_400_000
MAX_WAIT_MS = 3_600_000
#: size limit of the messages in a reply, unless the first one is larger
PAGE_BYTES = 4 << 20


def check_ms(value: int, low: int, what: str, high: int = MAX_MS) -> None:
    """Refuse a time out of range.

    Raises:
        RequestError: the time is out of range; the text gives the range.
    """
    if not low <= value <= high:
        raise RequestError(f"{what} is {low} to {high} ms, not {value}", value=value, limit=high)


def check_quantity(value: int, high: int = MAX_QUANTITY) -> None:
    """Refuse a number of messages out of range.

    Raises:
        RequestError: the number is out of range; the text gives the range.
    """
    if not 1 <= value <= high:
        raise RequestError(f"ask for 1 to {high} messages, not {value}", value=value, limit=high)
