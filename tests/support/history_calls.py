"""Calls about history, over a connection that a test has; bodies stay envelopes."""

from __future__ import annotations

from typing import Any

from kombu_opendata.client.calls import history_queries as requests
from kombu_opendata.client.calls.history_queries import Bucket, Page, attempts_of, buckets_of, messages_of
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.protocol.messages.history_messages import AttemptInfo, MessageInfo, RetrieveAttempt, RetrieveMessage
from kombu_opendata.queue_client.message_models import bodies_of_page


def list_messages(connection: BrokerConnection, **asked: Any) -> Page[MessageInfo]:
    return messages_of(connection.call(requests.list_messages_request(asked)))  # type: ignore[arg-type]


def list_attempts(connection: BrokerConnection, **asked: Any) -> Page[AttemptInfo]:
    return attempts_of(connection.call(requests.list_attempts_request(asked)), bodies_of_page())  # type: ignore[arg-type]


def retrieve_message(connection: BrokerConnection, id: int) -> MessageInfo | None:
    return next(iter(messages_of(connection.call(RetrieveMessage(0, id))).items), None)


def retrieve_attempt(connection: BrokerConnection, id: str, *, bodies: bool = False) -> AttemptInfo | None:
    return next(iter(attempts_of(connection.call(RetrieveAttempt(0, id, bodies)), bodies_of_page()).items), None)


def count_messages(connection: BrokerConnection, **asked: Any) -> tuple[Bucket, ...]:
    return buckets_of(connection.call(requests.count_messages_request(asked)))  # type: ignore[arg-type]


def count_attempts(connection: BrokerConnection, **asked: Any) -> tuple[Bucket, ...]:
    return buckets_of(connection.call(requests.count_attempts_request(asked)))  # type: ignore[arg-type]
