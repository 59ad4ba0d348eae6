"""Requests that explain why a queue receives a message, or why it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import RequestError
from ...protocol.envelope import header_text
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
    """Explain whether a queue would get a message with its present bindings and filter.

    Args:
        queue: its name; empty to explain ``filter`` alone.
        message_id: the id of a stored message; or give ``headers``.
        headers: the headers of a message as it would be sent, with ``exchange`` and ``routing_key`` among them.
        filter: a selector to try out.
        timeout: seconds to wait for the report.

    Returns:
        ``matches``: True if the queue receives the message, also through alternate exchanges. ``filter``: the
        explanation of the queue's filter, None if it has no filter; and ``mode``. ``bindings``: the ``exchange``,
        ``type`` and ``routing_key`` of each, whether it ``matches``, and an ``explanation``; at most 50, those that
        match first, and ``bindings_omitted`` counts the rest. For a filter alone there are only ``matches`` and
        ``filter``.

        An explanation has ``text``, ``value`` (True, False, or None for unknown), ``headers`` (those that it read, None
        for a missing header), ``parts`` (explanations) and ``omitted`` (the number of parts that are not shown); see
        :meth:`kombu_opendata.selectors.Explanation.from_dict`.

    Raises:
        NotFound: no such queue or message.
        SelectorError: the filter is not valid.
        RequestError: not exactly one of queue and filter was given; or both a message id and headers were.
        OpenDataError: as :meth:`BrokerConnection.call`.
    """
    if message_id is not None and message_id < 0:
        raise RequestError(f"there is no message id {message_id}", message_id=message_id)
    answer: Explained = connection.call(explain_request(queue, message_id, headers, filter), timeout)
    return answer.report


def explain_request(queue: str, message_id: int | None, headers: Mapping[str, Any] | None, filter: str) -> Explain:
    """Return the request of :func:`explain`."""
    if message_id is None:
        return Explain(0, queue, -1, header_texts(headers), filter)
    return Explain(0, queue, message_id, header_texts(headers) if headers else {}, filter)


def header_texts(headers: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the headers as filters see them: as texts, with those that every message has.

    None and nested values are omitted.
    """
    seen = {"exchange": "", "routing_key": "", "priority": "0"}
    if headers is not None and not isinstance(headers, Mapping):
        raise RequestError(f"headers must be a mapping, not {type(headers).__name__}")
    for name, value in (headers or {}).items():
        if (text := header_text(value)) is not None:
            seen[name] = text
    return seen
