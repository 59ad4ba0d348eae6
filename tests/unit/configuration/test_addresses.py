"""Addresses as options give them."""

from __future__ import annotations

import pytest

from kombu_opendata.configuration.addresses import Listen, parse_authority, parse_listen


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("9464", "127.0.0.1", 9464),
        (":9464", "127.0.0.1", 9464),
        ("0", "127.0.0.1", 0),
        ("0.0.0.0:1", "0.0.0.0", 1),
        ("[::1]:65535", "::1", 65535),
        ("metrics.example:80", "metrics.example", 80),
    ],
)
def test_where_metrics_are_served(text: str, host: str, port: int) -> None:
    assert parse_authority(text) == Listen(host=host, port=port)


@pytest.mark.parametrize(
    "text", ["", "host", "1.2.3.4:", "a:b", "::1:9", "[::1]", "h:99999", "99999", "h h:1", "unix:/x", "٣", "h:٣", "-1"]
)
def test_an_address_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT") as caught:
        parse_authority(text)
    assert str(caught.value) == f"{text!r} is not HOST:PORT, such as 127.0.0.1:9464 or [::1]:9464"


def test_a_listen_address_is_shown_as_it_is_given() -> None:
    for text in ("unix:/a/b.sock", "tcp:127.0.0.1:5677", "tcp:[::1]:0"):
        assert str(parse_listen(text)) == text


@pytest.mark.parametrize("text", ["", "unix:", "tcp:h:x", "udp:h:1", "/a/b.sock", "unix:a\0b", "tcp:h\0:1"])
def test_what_nobody_can_listen_on(text: str) -> None:
    with pytest.raises(ValueError, match="is neither unix:PATH nor tcp:HOST:PORT"):
        parse_listen(text)


def test_a_socket_of_a_folder() -> None:
    assert parse_listen("unix:q.sock", "/srv") == Listen(path="/srv/q.sock")
    assert parse_listen("unix:/run/q.sock", "/srv") == Listen(path="/run/q.sock")
    with pytest.raises(ValueError, match=r"has 118 bytes, the system's limit is 107"):
        parse_listen("unix:" + "x" * 107, "/srv/queue")
