"""Whom the limits per host are for."""

from __future__ import annotations

import socket

import pytest

from kombu_opendata.broker.wire.listener import peer_of


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1", "fe80::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("::1", "::/64"),
    ],
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    with socket.socket() as sock:
        found, peer = peer_of(sock, (address, 5671))
    assert found == host
    assert peer == (f"[{address}]:5671" if ":" in address else f"{address}:5671")
