"""Each message has a number of its own, whichever side sends it."""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from typing import get_args

from kombu_opendata.protocol import messages
from kombu_opendata.protocol.messages import BrokerMessage, BulkStep, ClientMessage, FailureQuery
from kombu_opendata.protocol.messages.message_base import Numbered, Request, WireMessage


def defined() -> list[type[WireMessage]]:
    """The messages of all modules of the protocol, also those that no side knows yet."""
    modules = [
        importlib.import_module(f"{messages.__name__}.{found.name}")
        for found in pkgutil.iter_modules(messages.__path__)
    ]
    return [
        one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type)
        and issubclass(one, WireMessage)
        and one not in (WireMessage, Numbered, Request, FailureQuery, BulkStep)
        if one.__module__ == module.__name__
    ]


MESSAGES = defined()


def number(message: type[WireMessage]) -> int:
    tag = message.__struct_config__.tag
    assert isinstance(tag, int), message
    return tag


def test_no_two_messages_have_one_number() -> None:
    by_number = defaultdict(list)
    for message in MESSAGES:
        by_number[number(message)].append(message.__name__)
    assert len(MESSAGES) > 100
    assert {tag: names for tag, names in by_number.items() if len(names) > 1} == {}


def test_each_message_is_sent_by_one_side() -> None:
    client, broker = get_args(ClientMessage), get_args(BrokerMessage)
    assert set(MESSAGES) == {*client, *broker}
    assert len(MESSAGES) == len(client) + len(broker)
