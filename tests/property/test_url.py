"""Whatever a secret holds, nobody sees it: not in a URL that is shown, not in an error, not in a log of fields."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from kombu import connection as kombu_connection

from kombu_opendata.errors import InvalidURL
from kombu_opendata.masking import masked
from kombu_opendata.transport.connection_fields import address_of
from kombu_opendata.url import parse

KombuConnection: Any = kombu_connection.Connection

MARK = "s3cr3t"
#: what ends a user, a host or a URL, and what is told apart by it
around = st.lists(st.sampled_from([*":/?#@;,[]%&= \t\n\\", "//", "://", "1", "x", "ü", "℀", "%2F"]), max_size=6)
secrets = st.builds(lambda before, after: "".join([*before, MARK, *after]), around, around)
#: a list of two URLs with the mark in a host's name is no secret that is cut
_LIST = re.compile(r";[A-Za-z][A-Za-z0-9+.-]*://")


hosts = st.lists(
    st.tuples(st.sampled_from(["a", "b.example.org", "10.0.0.1", "[::1]"]), st.sampled_from([5677, 1, 65535])),
    min_size=1,
    unique=True,
)


def url_with(secret: str) -> str:
    return f"opendata://alice:{secret}@host:1234/inst"


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """The traceback of a call's error with all its causes, or what it returned."""
    try:
        return "", call()
    except (InvalidURL, ConnectionError) as exc:
        return "".join(traceback.format_exception(exc)) + repr(getattr(exc, "values", "")), None


@given(secrets, st.sampled_from(["opendata", "opendatas", "opendata+s3", "amqp", "opendta"]))
def test_a_raw_secret_is_masked_in_right_and_wrong_urls(secret: str, scheme: str) -> None:
    assume(not _LIST.search(secret))
    url = url_with(secret).replace("opendata", scheme, 1)
    assert MARK not in masked(url)
    error, address = outcome(lambda: parse(url))
    assert MARK not in error, url
    if address is not None:
        assert (address.user, address.host, address.port) == ("alice", "host", 1234)
        assert MARK not in repr(address) + str(address)


@given(secrets)
def test_a_list_that_is_cut_inside_a_secret_shows_none_of_it(secret: str) -> None:
    assume(not _LIST.search(secret))
    whole = f"opendata://one;{url_with(secret)};{url_with(secret)}"
    assert MARK not in masked(whole)


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_an_encoded_secret_is_read_as_it_was(secret: str) -> None:
    url = url_with(quote(secret, safe=""))
    assert parse(url).secret == secret
    assert parse(parse(url).as_uri(include_secret=True)) == parse(url)
    connection = KombuConnection(url)
    assert connection.info()["password"] == secret
    for one in (connection, connection.clone(), KombuConnection(f"{url};opendata://b")):
        assert address_of(one) == parse(url)
        assert parse(one.as_uri(include_password=True)) == parse(url)


@given(hosts, st.sampled_from(["opendata", "opendatas"]), st.booleans())
def test_a_list_of_hosts_is_read_as_it_was(hosts: list[tuple[str, int]], scheme: str, ports: bool) -> None:
    texts = [f"{host}:{port}" if ports or port != 5677 else host for host, port in hosts]
    url = f"{scheme}://alice:{MARK}@{','.join(texts)}/inst"
    address = parse(url)
    assert [(each.host, each.port) for each in address.each] == [(host.strip("[]"), port) for host, port in hosts]
    assert parse(address.as_uri(include_secret=True)) == address
    connection = KombuConnection(url)
    for one in (connection, connection.clone(), KombuConnection(**connection.info())):
        assert address_of(one) == address
        assert parse(one.as_uri(include_password=True)) == address
        assert MARK not in f"{one!r} {one.info()} {one.as_uri()} {masked(url)} {address!r}"


@given(secrets)
@example("/s3cr3t;/://")
@example("s3cr3t:%2F%2F")
def test_a_kombu_connection_shows_no_raw_secret(secret: str) -> None:
    assume(not re.search(r"[][℀]|;[A-Za-z+.-]*:|\s", secret))  # what urllib refuses before we see it, in its own words
    connection = KombuConnection(url_with(secret).replace("host:1234", "127.0.0.1:1"))
    assert MARK not in repr(connection.info()) + repr(connection) + connection.as_uri()
    error, _ = outcome(connection.transport.establish_connection)
    assert MARK not in error


def test_a_slash_in_the_secret_is_told_to_be_encoded() -> None:
    for raw in ("sec/ret", "sec#ret", "sec?ret", "sec;/ret"):
        with pytest.raises(InvalidURL, match=r"'opendata://alice:\*\*@host' .*percent-encode .*%2F"):
            parse(f"opendata://alice:{raw}@host")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("opendata://a:1@h;opendata://b:2@i/x", "opendata://a:**@h;opendata://b:**@i/x"),
        ("opendata://h:56;opendata://b:2@i", "opendata://h:56;opendata://b:**@i"),
        ("opendata://a:1;2@h", "opendata://a:**@h"),
        ("opendata://:only@h", "opendata://:**@h"),
        ("opendata://a:cut", "opendata://a:**"),
        ("cut@h", "**@h"),
        ("opendata://[::1]:9/x", "opendata://[::1]:9/x"),
        ("opendata://a:1,b:2,[::1]:9", "opendata://a:1,b:2,[::1]:9"),
        ("opendata://u:1@a:1,b:2", "opendata://u:**@a:1,b:2"),
        ("opendata://u:cut,b:2", "opendata://u:**"),
        ("opendata:///srv/a:b", "opendata:///srv/a:b"),
        ("/srv/a:b", "/srv/a:b"),
        ("opendata://h/x?password=secret&a=&ssl", "opendata://h/x?password=**&a=&ssl"),
        ("opendata://a:1@h?sig=s%3D;opendata://i?k=v=w", "opendata://a:**@h?sig=**;opendata://i?k=**"),
        ("s3://bucket/a&b=c", "s3://bucket/a&b=c"),
    ],
)
def test_what_is_masked(url: str, shown: str) -> None:
    assert masked(url) == shown
