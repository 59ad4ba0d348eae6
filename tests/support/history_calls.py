"""Calls about history, over a connection that a test has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.protocol.messages import AttemptInfo, AttemptPage, MessageInfo, MessagePage
from kombu_opendata.queue_client.connections import unnumbered
from kombu_opendata.queue_client.history import Bucket, HistoryQueries


def history_of(connection: BrokerConnection) -> HistoryQueries:
    history = object.__new__(HistoryQueries)
    history.calls = SimpleNamespace(call_apart=lambda message: unnumbered(connection.call(message)))  # type: ignore[assignment]
    return history


def list_messages(connection: BrokerConnection, **asked: Any) -> MessagePage:
    return history_of(connection).list_messages(**asked)


def list_attempts(connection: BrokerConnection, **asked: Any) -> AttemptPage:
    return history_of(connection).list_attempts(**asked)


def retrieve_message(connection: BrokerConnection, id: int) -> MessageInfo | None:
    return history_of(connection).retrieve_message(id)


def retrieve_attempt(connection: BrokerConnection, id: str, *, bodies: bool = False) -> AttemptInfo | None:
    return history_of(connection).retrieve_attempt(id, bodies=bodies)


def count_messages(connection: BrokerConnection, **asked: Any) -> tuple[Bucket, ...]:
    return history_of(connection).count_messages(**asked)


def count_attempts(connection: BrokerConnection, **asked: Any) -> tuple[Bucket, ...]:
    return history_of(connection).count_attempts(**asked)
