"""Ask a broker why a queue gets a message, or why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import RequestError
from ...protocol.messages import Explain, Explained
from ..session.broker_connection import BrokerConnection

DEFAULT_TIMEOUT_SECONDS = 30.0


def explain(
    connection: BrokerConnection,
    queue: str = "",
    *,
    message_id: int | None = None,
    headers: Mapping[str, Any] | None = None,
    filter: str = "",
    timeout: float | None = DEFAULT_TIMEOUT_SECONDS,
) -> dict[str, Any]:
    """Explain whether a queue gets a message as its bindings and its filter are now.

    Args:
        queue: its name; without one, ``filter`` is explained.
        message_id: of a message that is stored. Or:
        headers: the headers of a message, as they would be sent; ``exchange`` and ``routing_key`` are among them.
        filter: a selector, to try it out.
        timeout: seconds to wait for the report.

    Returns:
        ``matches``: whether the queue gets the message. ``filter``: what each part of the queue's filter is (None if
        it has none), and ``mode``. ``bindings``: for each its ``exchange``, ``type`` and ``routing_key``, whether it
        ``matches``, and an ``explanation``; those that match come first, at most 50, ``bindings_omitted`` counts the
        rest. Alternate exchanges count for ``matches`` and for no binding. For a filter alone ``matches`` and
        ``filter``. An explanation has ``text``, ``value`` (True, False, None for unknown), ``headers`` (those
        it read; None is a missing one), ``parts`` (explanations) and ``omitted`` (how many parts are not shown); see
        :meth:`kombu_opendata.selectors.Explanation.from_dict`.

    Raises:
        NotFound: no such queue or message.
        SelectorError: the filter is none.
        RequestError: neither queue nor filter, or both; or a message id and headers.
        OpenDataError: as :meth:`BrokerConnection.call`.
    """
    if message_id is not None and message_id < 0:
        raise RequestError(f"there is no message id {message_id}", message_id=message_id)
    answer: Explained = connection.call(explain_request(queue, message_id, headers, filter), timeout)
    return answer.report


def explain_request(queue: str, message_id: int | None, headers: Mapping[str, Any] | None, filter: str) -> Explain:
    """The request of :func:`explain`, for those who send it themselves; ``rid`` is 0."""
    if message_id is None:
        return Explain(0, queue, -1, header_texts(headers), filter)
    return Explain(0, queue, message_id, header_texts(headers) if headers else {}, filter)


def header_texts(headers: Mapping[str, Any] | None) -> dict[str, str]:
    """Headers as filters see them: texts, and what every message has; None and what is nested is not seen."""
    seen = {"exchange": "", "routing_key": "", "priority": "0"}
    if headers is not None and not isinstance(headers, Mapping):
        raise RequestError(f"headers are a mapping, not {type(headers).__name__}")
    for name, value in (headers or {}).items():
        if isinstance(value, bool):
            seen[name] = "true" if value else "false"
        elif isinstance(value, (str, int, float)):
            seen[name] = repr(value) if type(value) in (int, float) else str(value)
    return seen
