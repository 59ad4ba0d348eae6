"""Each error of the transport is one of ours and one of AMQP's."""

from __future__ import annotations

import pickle

import pytest
from amqp import exceptions as amqp

from kombu_opendata import errors
from kombu_opendata.transport import Transport
from kombu_opendata.transport.amqp_errors import translate

ALL = sorted(set(errors.BY_CODE.values()), key=lambda cls: cls.code)


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.code)
def test_a_translation_keeps_class_text_values_and_pickles(cls: type[errors.OpenDataError]) -> None:
    translated = translate(cls("what to do", limit=3))
    nearest = cls if cls in (errors.OpenDataError,) else next(c for c in cls.__mro__ if isinstance(translated, c))
    assert issubclass(cls, nearest)
    assert isinstance(translated, errors.OpenDataError)
    assert "what to do" in str(translated)
    assert translated.values == {"limit": 3}
    again = pickle.loads(pickle.dumps(translated))
    assert (type(again), str(again), again.values) == (type(translated), str(translated), translated.values)
    assert translate(translated) is translated or isinstance(translated, errors.InvalidURL)


@pytest.mark.parametrize(
    ("cls", "code"),
    [
        (errors.NotFound, 404),
        (errors.PreconditionFailed, 406),
        (errors.AccessRefused, 403),
        (errors.MessageTooLarge, 406),
        (errors.ConnectionLost, 320),
    ],
)
def test_the_numbers_are_amqps(cls: type[errors.OpenDataError], code: int) -> None:
    translated = translate(cls("x"))
    assert isinstance(translated, (cls, amqp.AMQPError))
    assert (translated.code, translated.reply_code) == (code, code)  # type: ignore[union-attr]


def test_somebody_elses_exclusive_queue_is_locked() -> None:
    assert translate(errors.AccessRefused("x", queue="q")).code == 405  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("cls", "group"),
    [
        (errors.ConnectionLost, Transport.recoverable_connection_errors),
        (errors.FrameTooLarge, Transport.recoverable_connection_errors),
        (errors.VersionMismatch, Transport.connection_errors),
        (errors.StoreUnwritable, Transport.connection_errors),
        (errors.CorruptRecord, Transport.connection_errors),
        (errors.RetryLater, Transport.recoverable_channel_errors),
        (errors.BrokerStopping, Transport.recoverable_channel_errors),
        (errors.NotFound, Transport.channel_errors),
        (errors.InvalidMessage, Transport.channel_errors),
        (errors.Unroutable, Transport.channel_errors),
    ],
)
def test_kombu_finds_it_in_its_group(cls: type[errors.OpenDataError], group: tuple[type, ...]) -> None:
    assert isinstance(translate(cls("x")), group)


@pytest.mark.parametrize("cls", [errors.VersionMismatch, errors.StoreUnwritable, errors.SocketPathTooLong])
def test_what_another_try_will_not_mend_is_not_recoverable(cls: type[errors.OpenDataError]) -> None:
    assert not isinstance(translate(cls("x")), Transport.recoverable_connection_errors)


def test_a_wrong_url_is_no_connection_error() -> None:
    translated = translate(errors.InvalidURL("x"))
    assert isinstance(translated, ValueError)
    assert not isinstance(translated, Transport.connection_errors + Transport.channel_errors)
