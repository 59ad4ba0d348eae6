"""Broker URLs."""

from __future__ import annotations

import pytest

from kombu_opendata.celery_integration.broker_access import access_of
from kombu_opendata.errors import InvalidURL, RequestError
from kombu_opendata.masking import masked
from kombu_opendata.url import Address, parse


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("opendata:///var/lib/q", Address("embedded", folder="/var/lib/q")),
        ("opendata:///var//lib/./q/../q/", Address("embedded", folder="/var/lib/q")),
        ("opendata:///tmp/a%20b", Address("embedded", folder="/tmp/a b")),
        ("opendata://host", Address("tcp", host="host", port=5677)),
        ("opendata://host:1234//", Address("tcp", host="host", port=1234)),
        (
            "opendata://us%40er:se%2Fcret@host:1/inst-1",
            Address("tcp", host="host", port=1, instance="inst-1", user="us@er", secret="se/cret"),
        ),
        ("opendatas://[::1]:9/x", Address("tcp", host="::1", port=9, instance="x", tls=True)),
        (
            "opendatas://u:s@A,b:12,[::1]:9,a/x",
            Address("tcp", "", "a", 5677, "x", "u", "s", tls=True, others=(("b", 12), ("::1", 9))),
        ),
        ("opendata://%2Frun%2Fa%2C.sock,%2Fb", Address("unix", host="/run/a,.sock", others=(("/b", 5677),))),
        ("opendata+memory://name", Address("memory", name="name")),
        ("memory://name", Address("memory", name="name")),
        ("opendata+memory://", Address("memory", name="default")),
    ],
)
def test_a_url_is_read(url: str, address: Address) -> None:
    assert parse(url) == address


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("/var/lib/q", "it is not a URL"),
        ("redis://host", r"not one of opendata, opendatas, opendata\+memory$"),
        ("opendta:///tmp/q", "did you mean opendata://"),
        ("OpenDatas://host", "did you mean opendatas://"),
        ("opendata://", "neither a folder nor a host"),
        ("opendata:///", "names no folder"),
        ("opendata://./queue", "must be absolute"),
        ("opendata://~/queue", "must be absolute"),
        ("opendata:///tmp/a%00b", "control characters"),
        ("opendata://user@.host", "a host can't begin with"),
        ("opendata://a,~b", "a host can't begin with"),
        ("opendata://%3aa", "only in brackets"),
        ("opendata://a\udcff:1", "not UTF-8"),
        ("opendata:///srv/\udcff", "not UTF-8"),
        ("opendata:///tmp/q?sync=0", "takes no query"),
        ("opendata://host/x?y=1", "takes no query"),
        ("opendata://host:no", "[Pp]ort"),
        ("opendata://[:%2F]", "IPv6"),
        ("opendata://[:%67]", "IPv6"),
        ("opendata://tmp/some/folder", "three slashes"),
        ("opendata://host/a b", "instance is one name"),
        ("opendatas:///tmp/q", "without TLS"),
        ("opendata://a,", "a host is missing before or after a ','"),
        ("opendata://a:1,,b", "a host is missing"),
        ("opendata://a:1,b:no", "a port up to 65535"),
        ("opendata://u:s@a,u:s@b", "written once, before the first host"),
        ("opendata://a,%2Frun%2Fb.sock", "either hosts or Unix sockets"),
        ("opendatas://%2Frun%2Fa.sock,%2Frun%2Fb.sock", "neither a port nor TLS"),
    ],
)
def test_a_wrong_url_says_what_to_write(url: str, says: str) -> None:
    with pytest.raises(InvalidURL, match=says):
        parse(url)


@pytest.mark.parametrize("store", ["s3://bucket/prefix", "az://container/x", "gs://bucket", "opendata://s3://bucket/p"])
def test_a_remote_store_belongs_to_the_broker(store: str) -> None:
    with pytest.raises(InvalidURL, match=r"opendata-queue broker --store \w+://.* --listen .*opendata://thathost:5677"):
        parse(store)


def test_a_file_url_is_told_how_to_write_the_folder() -> None:
    with pytest.raises(InvalidURL, match="write opendata:///tmp/q"):
        parse("opendata://file:///tmp/q")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("opendata:///tmp/a%20b", "opendata:///tmp/a%20b"),
        ("opendata://u:secret@host", "opendata://u:**@host:5677/default"),
        ("opendatas://host/x", "opendatas://host:5677/x"),
        ("opendata://u:secret@a,[::1]:9/x", "opendata://u:**@a:5677,[::1]:9/x"),
        ("opendata://u:secret@[fe80::1%25e0]", "opendata://u:**@[fe80::1%25e0]:5677/default"),
        ("opendata://:secret@%2Fa,%2Fb%2C", "opendata://:**@%2Fa,%2Fb%2C/default"),
        ("opendata+memory://n", "opendata+memory://n"),
    ],
)
def test_the_secret_is_masked_and_the_rest_reads_back(url: str, shown: str) -> None:
    address = parse(url)
    assert str(address) == shown
    assert "secret" not in repr(address).replace("secret=", "")
    assert parse(address.as_uri(include_secret=True)) == address


def test_the_order_of_the_hosts_makes_no_other_place() -> None:
    assert parse("opendata://u:s@a,b/x").place == parse("opendata://b,a/x").place != parse("opendata://a/x").place
    assert [str(each) for each in parse("opendata://a,b:1").each] == [
        "opendata://a:5677/default",
        "opendata://b:1/default",
    ]


def test_an_error_masks_the_secret() -> None:
    with pytest.raises(InvalidURL) as caught:
        parse("opendata://u:secret@host/x?y")
    assert "secret" not in str(caught.value)
    assert masked("x://u:secret@h") == "x://u:**@h"


def test_spark_says_what_was_meant() -> None:
    with pytest.raises(RequestError, match=r"not to 'opendta://u:\*\*@host': .* did you mean opendata://\?"):
        access_of("opendta://u:s3cret@host")
