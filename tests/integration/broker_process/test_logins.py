"""Users, secrets and TLS of a broker on TCP, as those who run it and those who connect see them."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher

from kombu_opendata import errors
from kombu_opendata.broker.process.start_settings import broker_settings
from kombu_opendata.configuration.addresses import parse_listen
from kombu_opendata.configuration.options import BrokerOptions

from ...support.certificates import Authority, write_private
from ...support.kombu_client import connected, declare, drain_until, refused
from ...support.processes import Children, wait_until
from ...support.raw import RawClient
from ...support.served import COMMAND, ServedBroker
from ...support.users import CHEAP, user_table, write_users


class Site:
    """A broker with a file of users and a certificate for localhost."""

    def __init__(self, folder: Path, started: Children) -> None:
        self.folder = folder
        self._started = started
        authority = Authority(folder)
        self.ca = authority.path
        self.chain, self.key, self.both = authority.issue("chain", "localhost")
        self.users = folder / "users"
        self._hashes: dict[str, str] = {}
        self.write_users(alice="right", bob="right too")

    def write_users(self, **secrets: str) -> None:
        """Replace the file; a user keeps the hash of a secret."""
        for secret in secrets.values():
            self._hashes.setdefault(secret, CHEAP.hash(secret))
        write_users(self.users, *(user_table(name, hashed=self._hashes[secret]) for name, secret in secrets.items()))

    def serve(self, *options: str) -> ServedBroker:
        store = ("--store", f"file://{self.folder}/store", "--listen", "tcp:127.0.0.1:0")
        broker = ServedBroker(self.folder, *store, *options)
        self._started.add(broker)
        return broker

    def fail(self, *options: str) -> str:
        """What a broker says that does not start."""
        store = ("--store", f"file://{self.folder}/store")
        done = subprocess.run([COMMAND, "broker", *store, *options], capture_output=True, text=True, timeout=60)
        assert done.returncode in (1, 2), done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr


@pytest.fixture
def site(store_folder: Path, started: Children) -> Site:
    return Site(store_folder, started)


def test_a_user_who_is_removed_loses_open_connections(site: Site) -> None:
    broker = site.serve("--users", str(site.users))
    url = f"opendata://%s@127.0.0.1:{broker.port}"
    with connected(url % "alice:right") as alice, connected(url % "bob:right too") as bob:
        declare(alice.channel(), "q")
        bob.channel().basic_consume("q", callback=print)
        site.write_users(alice="right", carol="new")
        with pytest.raises(errors.AccessRefused, match="user 'bob' is unknown or the secret is wrong"):
            drain_until(bob, lambda: False)
        declare(alice.channel(), "q2")
        site.users.write_text("[users.alice]\nsecret = 'right'\n")
        wait_until(lambda: "the users stay as they were: the users file" in broker.log.read_text(), 60, "a line")
        declare(alice.channel(), "q3")
        with connected(url % "carol:new"):
            pass
    assert broker.terminate() == 0


def test_a_refusal_says_in_the_log_from_where(site: Site) -> None:
    broker = site.serve("--users", str(site.users))
    for user in ("alice", "nobody"):
        error = refused(f"opendata://{user}:guessed-secret@127.0.0.1:{broker.port}")
        assert isinstance(error, errors.AccessRefused)
    log = broker.log.read_text()
    assert log.count("at 127.0.0.1:") == 2
    assert "guessed-secret" not in log
    assert broker.terminate() == 0


@pytest.mark.slow
def test_a_valid_login_beside_guessers(site: Site) -> None:
    """Guessers at one address, who are refused in the end; at another one, a user logs in for the first time."""
    write_users(site.users, user_table("alice", hashed=PasswordHasher().hash("right")))
    broker = site.serve("--users", str(site.users))
    stop, seen = threading.Event(), []

    def guess(number: int) -> None:
        count = 0
        while not stop.is_set():
            count += 1
            seen.append(
                refused(f"opendata://alice:guess-{number}-{count}@127.0.0.1:{broker.port}", connect_timeout=0.2)
            )

    guessers = [threading.Thread(target=guess, args=(number,)) for number in range(8)]
    for thread in guessers:
        thread.start()
    try:
        wait_until(lambda: any(isinstance(error, errors.RetryLater) for error in seen), 60, "a guesser is limited")
        with RawClient(broker.port, source="127.0.0.2") as alice:
            alice.hello(user="alice", secret="right")
            alice.declare("q")
    finally:
        stop.set()
        for thread in guessers:
            thread.join()
    assert broker.terminate() == 0


# ------------------------------------------------------------------ starting
def test_a_users_file_that_can_not_be_used_is_refused_at_the_start(site: Site) -> None:
    for data, text in ((b"# us\nalice:$argon2id$\n", "line 2 of the users file"), (b"\xff:x\n", "is not UTF-8")):
        site.users.write_bytes(data)
        assert text in site.fail("--listen", "tcp:127.0.0.1:0", "--users", str(site.users))


def test_users_on_a_network_need_tls(site: Site) -> None:
    users = ("--listen", "tcp:0.0.0.0:0", "--users", str(site.users))
    said = site.fail(*users)
    assert "without TLS would show secrets to the network: give --tls-cert FILE and --tls-key FILE" in said
    assert "--allow-cleartext" in said
    for more in ({"allow_cleartext": True}, {"tls_cert": site.both}):
        listen = (parse_listen("tcp:0.0.0.0:0"),)
        options: Any = {"store": "memory://x", "listen": listen, "users": site.users, **more}
        assert broker_settings(BrokerOptions(**options)).users is not None


@pytest.mark.parametrize(
    ("cert", "key", "text"),
    [
        ("chain", None, "chain.pem holds no private key in PEM form: give --tls-key FILE"),
        ("chain", "chain", "chain.pem holds no private key"),
        ("chain.key", None, "chain.key.pem holds no certificate in PEM form"),
        ("users", None, "users holds no certificate in PEM form"),
        ("missing", None, "missing.pem can't be read: No such file or directory"),
        ("chain", "other", "other.pem does not belong to the certificate in"),
        ("chain", "encrypted", "is encrypted: decrypt it with openssl pkey"),
        (None, "chain.key", "--tls-key without --tls-cert"),
    ],
)
def test_certificates_that_can_not_be_used(site: Site, cert: str | None, key: str | None, text: str) -> None:
    write_private(site.folder / "other.pem", Authority(site.folder, "x").issue("x", "localhost").key.read_bytes())
    write_private(site.folder / "encrypted.pem", b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    files = {
        option: site.folder / (name if name == "users" else f"{name}.pem")
        for option, name in (("tls_cert", cert), ("tls_key", key))
        if name is not None
    }
    options: Any = {"store": "memory://x", "listen": (parse_listen("tcp:127.0.0.1:0"),), **files}
    with pytest.raises(errors.StartError, match=text):
        broker_settings(BrokerOptions(**options))


def test_a_certificate_and_its_key_in_one_file(site: Site) -> None:
    broker = site.serve("--tls-cert", str(site.both), "--users", str(site.users))
    url = f"opendatas://alice:right@localhost:{broker.port}"
    with connected(url, ssl={"ca_certs": str(site.ca)}) as connection:
        declare(connection.channel(), "q")
    assert broker.terminate() == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_certificate_that_the_page_makes(site: Site) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "users-and-tls.md").read_text()
    command = re.search(r"\$ (openssl req .*\\\n.*)", page)
    assert command is not None
    subprocess.run(command[1], shell=True, cwd=site.folder, check=True, capture_output=True, timeout=60)
    broker = site.serve("--tls-cert", str(site.folder / "cert.pem"), "--tls-key", str(site.folder / "key.pem"))
    with connected(f"opendatas://localhost:{broker.port}", ssl={"ca_certs": str(site.folder / "cert.pem")}) as client:
        declare(client.channel(), "q")
    assert broker.terminate() == 0


# ------------------------------------------------------------------ the wrong scheme
def test_a_client_without_tls_at_a_broker_with_tls(site: Site) -> None:
    broker = site.serve("--tls-cert", str(site.both))
    error = refused(f"opendata://127.0.0.1:{broker.port}")
    assert isinstance(error, errors.InvalidURL)
    assert "takes TLS only: write opendatas:// in place of opendata://" in str(error)
    wait_until(lambda: "takes TLS only" in broker.log.read_text(), 60, broker.log.read_text)
    assert "a connection was refused (127.0.0.1:" in broker.log.read_text()
    assert broker.terminate() == 0


def test_a_client_with_tls_at_a_broker_without(site: Site) -> None:
    broker = site.serve()
    error = refused(f"opendatas://127.0.0.1:{broker.port}")
    assert isinstance(error, errors.InvalidURL)
    assert f"the broker at opendatas://127.0.0.1:{broker.port}/default does not speak TLS" in str(error)
    assert "write opendata:// in place of opendatas://" in str(error)
    wait_until(lambda: "began with TLS" in broker.log.read_text(), 60, broker.log.read_text)
    assert "a connection was closed (127.0.0.1:" in broker.log.read_text()
    assert broker.terminate() == 0


def test_a_client_that_does_not_trust_the_certificate(site: Site) -> None:
    broker = site.serve("--tls-cert", str(site.both))
    error = refused(f"opendatas://localhost:{broker.port}")
    assert "certificate" in str(error)
    wait_until(lambda: "the TLS handshake failed" in broker.log.read_text(), 60, broker.log.read_text)
    assert broker.terminate() == 0


# ------------------------------------------------------------------ hash-secret
def hash_secret(data: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([COMMAND, "hash-secret", *options], input=data, capture_output=True, timeout=60)


@pytest.mark.parametrize("data", [b"s3cret", b"s3cret\n", b"s3cret\r\n"])
def test_a_secret_from_standard_input(data: bytes) -> None:
    done = hash_secret(data)
    assert done.returncode == 0, done.stderr
    assert PasswordHasher().verify(done.stdout.decode().strip(), "s3cret")


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"", b"is empty"), (b"\n", b"is empty"), (b"a\nb\n", b"more than one line"), (b"\xff", b"UTF-8")],
)
def test_a_secret_that_is_none(data: bytes, text: bytes) -> None:
    done = hash_secret(data)
    assert (done.returncode, done.stdout) == (2, b"")
    assert text in done.stderr


def test_a_secret_is_no_option() -> None:
    assert b"No such option" in hash_secret(b"", "--secret", "x").stderr


def test_a_secret_from_the_terminal_is_not_shown() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, str(COMMAND), "hash-secret"])
    shown = b""
    for question in (b"Secret:", b"confirmation:"):
        while question not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, b"s3cret\n")
    while b"$argon2id$" not in shown:
        shown += os.read(terminal, 4096)
    os.close(terminal)
    os.waitpid(pid, 0)
    assert b"s3cret" not in shown
