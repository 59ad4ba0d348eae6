"""Certificates of broker and clients: who is let in, which files are refused, and files that change."""

from __future__ import annotations

import datetime
import json
import socket
import ssl
import subprocess
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from kombu_opendata import errors
from kombu_opendata.broker.process.start_settings import broker_settings
from kombu_opendata.broker.wire.tls_certificates import ServerTls, TlsFiles
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.socket.connect import secured
from kombu_opendata.configuration.addresses import parse_listen
from kombu_opendata.configuration.options import BrokerOptions
from kombu_opendata.url import parse

from ...support.certificates import Authority, Issued, write_private
from ...support.kombu_client import connected, declare, drain_until, refused, send, take_bodies
from ...support.pair import Pair
from ...support.processes import Children, wait_until
from ...support.scrape import scrape
from ...support.served import COMMAND, ServedBroker
from ...support.users import user_table, write_users

DAY = datetime.timedelta(days=1)
ONLY_OWN = {"configure": "^own$", "write": ".*", "read": ".*"}


class Site:
    """A broker's certificate for localhost, and an authority of clients."""

    def __init__(self, folder: Path, started: Children) -> None:
        self.folder = folder
        self._started = started
        self.hosts, self.clients = Authority(folder, "hosts"), Authority(folder, "clients")
        self.server = self.hosts.issue("server", "localhost")
        self.worker = self.clients.issue("worker", "worker.example.org", common_name="worker")

    def serve(self, *options: str) -> ServedBroker:
        store = ("--store", f"file://{self.folder}/store", "--listen", "tcp:127.0.0.1:0")
        tls = ("--tls-cert", str(self.server.both), "--tls-client-ca", str(self.clients.path))
        broker = ServedBroker(self.folder, *store, *tls, *options)
        self._started.add(broker)
        return broker

    def ssl(self, client: Issued | None) -> dict[str, str]:
        """Kombu's ``ssl``."""
        given = {"ca_certs": str(self.hosts.path)}
        return given | ({"certfile": str(client.chain), "keyfile": str(client.key)} if client is not None else {})

    def load(self, **files: Any) -> ServerTls:
        return ServerTls(TlsFiles(**{"certificate": self.server.both, **files}))


@pytest.fixture
def site(store_folder: Path, started: Children) -> Site:
    return Site(store_folder, started)


# ------------------------------------------------------------------ who is let in
def test_only_clients_with_a_certificate_of_the_authority_are_let_in(site: Site) -> None:
    broker = site.serve()
    url = f"opendatas://localhost:{broker.port}"
    with connected(url, ssl=site.ssl(site.worker)) as connection:
        declare(connection.channel(), "q")
    error = refused(url, ssl=site.ssl(None))
    assert isinstance(error, errors.AccessRefused)
    assert "the broker wants a certificate of this client: give certfile and keyfile" in str(error)
    error = refused(url, ssl=site.ssl(Authority(site.folder, "others").issue("stranger", "worker.example.org")))
    assert isinstance(error, errors.AccessRefused)
    assert "the broker refused this client's certificate (unknown ca)" in str(error)
    old = site.clients.issue("old", "worker.example.org", not_after=datetime.datetime.now(datetime.UTC) - DAY)
    error = refused(url, ssl=site.ssl(old))
    assert isinstance(error, errors.AccessRefused)
    assert "(certificate expired)" in str(error)
    error = refused(url, ssl=site.ssl(site.worker) | {"ca_certs": str(site.clients.path)})
    assert "name the certificate of the authority: ca_certs in broker_use_ssl, or --tls-ca of a command" in str(error)
    wait_until(lambda: "handshake failed: certificate has expired" in broker.log.read_text(), 60, broker.log.read_text)
    assert broker.terminate() == 0


def test_the_certificate_may_be_optional(site: Site) -> None:
    broker = site.serve("--tls-client-auth", "optional")
    for client in (site.worker, None):
        with connected(f"opendatas://localhost:{broker.port}", ssl=site.ssl(client)) as connection:
            declare(connection.channel(), "q")
    assert broker.terminate() == 0


def limited(context: ssl.SSLContext, version: ssl.TLSVersion) -> ssl.SSLContext:
    """The context with this version at most, and with the old ciphers that old versions need."""
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = version
    return context


def test_the_broker_takes_tls_from_1_2_on(site: Site) -> None:
    broker = site.serve("--tls-client-auth", "optional")
    spoken = []
    for version in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = limited(ssl.create_default_context(cafile=site.hosts.path), version)
        with socket.create_connection(("localhost", broker.port), timeout=60) as plain:
            try:
                with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
                    spoken.append(wrapped.version())
                    assert wrapped.session is not None
                    assert not wrapped.session.has_ticket
            except ssl.SSLError as exc:
                spoken.append(exc.reason)
    assert spoken == ["TLSV1_ALERT_PROTOCOL_VERSION", "TLSv1.2", "TLSv1.3"]
    wait_until(lambda: "UNSUPPORTED_PROTOCOL" in broker.log.read_text(), 60, broker.log.read_text)
    assert broker.terminate() == 0


def test_a_client_takes_tls_from_1_2_on(site: Site) -> None:
    context = limited(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.TLSVersion.TLSv1_1)
    context.load_cert_chain(site.server.both)
    said: list[str] = []

    def answer(listener: socket.socket) -> None:
        plain, _ = listener.accept()
        try:
            context.wrap_socket(plain, server_side=True).close()
        except ssl.SSLError as exc:
            said.append(str(exc.reason))
            plain.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer, args=(listener,))
        server.start()
        address = parse(f"opendatas://localhost:{listener.getsockname()[1]}")
        with (
            socket.create_connection((address.host, address.port)) as plain,
            pytest.raises(errors.ConnectionLost, match="protocol version"),
        ):
            secured(plain, address, Options(tls=site.ssl(None)), timeout=60)
        server.join(10)
    assert said == ["UNSUPPORTED_PROTOCOL"]


def test_the_command_line_has_certificates(site: Site) -> None:
    broker = site.serve()
    url = f"opendatas://localhost:{broker.port}"
    given = {"OPENDATA_QUEUE_CERT": str(site.worker.chain), "OPENDATA_QUEUE_KEY": str(site.worker.key)}
    for options, env in (
        ((), given | {"OPENDATA_QUEUE_CA": str(site.hosts.path), "OPENDATA_QUEUE_URL": url}),
        (("--url", url, "--tls-ca", str(site.hosts.path), "--tls-cert", str(site.worker.both)), {}),
    ):
        done = subprocess.run(
            [COMMAND, "status", "--json", *options], env=env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["instances"]
    assert broker.terminate() == 0


def test_certificates_alone_protect_a_network(site: Site) -> None:
    options: Any = {
        "store": "memory://x",
        "listen": (parse_listen("tcp:0.0.0.0:0"),),
        "tls_cert": site.server.both,
        "tls_client_ca": site.clients.path,
    }
    assert broker_settings(BrokerOptions(**options)).tls is not None
    with pytest.raises(errors.StartError, match="without --users would let everybody in"):
        broker_settings(BrokerOptions(**options, tls_client_auth="optional"))
    del options["tls_cert"]
    with pytest.raises(errors.StartError, match="--tls-client-ca without --tls-cert"):
        broker_settings(BrokerOptions(**options))


# ------------------------------------------------------------------ users
def test_a_certificate_logs_in_as_the_user_that_has_one_of_its_names(site: Site) -> None:
    users = write_users(
        site.folder / "users",
        user_table("celery", certificates=("worker.example.org",), instances={"default": ONLY_OWN}),
        user_table("alice", "right", certificates=("alice@example.org",)),
        user_table("bob", "right too"),
    )
    broker = site.serve("--users", str(users))
    at = f"localhost:{broker.port}"
    worker = site.ssl(site.worker)
    for login in ("", "celery@"):
        with connected(f"opendatas://{login}{at}", ssl=worker) as connection, connection.channel() as channel:
            declare(channel, "own")
            with pytest.raises(errors.AccessRefused, match="user 'celery' may not configure queue 'other'"):
                declare(channel, "other")
    for login, client, said in (
        ("alice@", worker, "(worker.example.org, worker) is not one of user 'alice': use that user's certificate"),
        ("alice:right@", worker, "is not one of user 'alice'"),
        ("bob:right too@", worker, "is not one of user 'bob'"),
        ("alice:wrong@", site.ssl(site.clients.issue("alice", "alice@example.org")), "the secret is wrong"),
        ("", site.ssl(site.clients.issue("x", "x.example.org")), "(x.example.org) is no user's: add one of its names"),
        ("celery@", site.ssl(site.clients.issue("x", "x.example.org")), "(x.example.org) is no user's"),
        ("alice:right@", site.ssl(site.clients.issue("x", "x.example.org")), "is not one of user 'alice'"),
    ):
        error = refused(f"opendatas://{login}{at}", ssl=client)
        assert isinstance(error, errors.AccessRefused), login
        assert said in str(error)
    for login, name in (("bob:right too@", "x.example.org"), ("alice:right@", "alice@example.org")):
        with connected(f"opendatas://{login}{at}", ssl=site.ssl(site.clients.issue("y", name))) as connection:
            declare(connection.channel(), "own")
    assert broker.terminate() == 0


def test_with_optional_certificates_a_user_without_one_gives_a_secret(site: Site) -> None:
    users = write_users(site.folder / "users", user_table("celery", "right", certificates=("worker.example.org",)))
    broker = site.serve("--users", str(users), "--tls-client-auth", "optional")
    at = f"localhost:{broker.port}"
    with connected(f"opendatas://{at}", ssl=site.ssl(site.worker)):
        pass
    with connected(f"opendatas://celery:right@{at}", ssl=site.ssl(None)):
        pass
    for login in ("", "celery@"):
        assert "the secret is wrong" in str(refused(f"opendatas://{login}{at}", ssl=site.ssl(None)))
    assert broker.terminate() == 0


def test_a_user_who_loses_a_certificate_loses_its_connections(site: Site) -> None:
    path = site.folder / "users"
    other = user_table("other", "right")
    users = write_users(path, user_table("celery", certificates=("worker", "more.example.org")), other)
    broker = site.serve("--users", str(users))
    url = f"opendatas://localhost:{broker.port}"
    with connected(url, ssl=site.ssl(site.worker)) as connection:
        channel = connection.channel()
        write_users(path, user_table("celery", certificates=("worker.example.org",)), other)
        wait_until(lambda: "users file was read again" in broker.log.read_text(), 60, broker.log.read_text)
        declare(channel, "q")
        channel.basic_consume("q", callback=print)
        write_users(path, user_table("celery", certificates=("more.example.org",)), other)
        with pytest.raises(errors.AccessRefused, match="is no user's"):
            drain_until(connection, lambda: False)
    assert broker.terminate() == 0


# ------------------------------------------------------------------ files that can't be used
def test_dates_of_a_certificate(site: Site) -> None:
    now = datetime.datetime.now(datetime.UTC)
    old, coming = (
        site.hosts.issue("old", "localhost", not_after=now - DAY),
        site.hosts.issue("coming", "localhost", not_before=now + DAY),
    )
    with pytest.raises(errors.StartError, match=r"old.both.pem expired on .* UTC: renew it"):
        site.load(certificate=old.both)
    with pytest.raises(errors.StartError, match=r"is not valid before .* UTC: wait, or check this machine's clock"):
        site.load(certificate=coming.both)


def test_a_key_that_everybody_may_read(site: Site) -> None:
    site.server.key.chmod(0o644)
    with pytest.raises(errors.StartError, match=r"\(mode 644\): chmod o-rwx .*/server.key.pem"):
        site.load(certificate=site.server.chain, key=site.server.key)
    site.server.key.chmod(0o640)
    site.server.chain.chmod(0o644)
    site.load(certificate=site.server.chain, key=site.server.key)


def test_files_that_hold_no_authority(site: Site) -> None:
    with pytest.raises(errors.StartError, match=r"holds no certificate of an authority: give --tls-client-ca"):
        site.load(client_ca=site.worker.chain)
    with pytest.raises(errors.StartError, match=r"holds no certificates of authorities in PEM form"):
        site.load(client_ca=site.worker.key)
    with pytest.raises(errors.StartError, match=r"missing can't be read: No such file or directory"):
        site.load(client_ca=site.folder / "missing")


def test_a_revoked_certificate(site: Site) -> None:
    other = site.clients.issue("other", "other.example.org")
    key = serialization.load_pem_private_key(site.clients.ca.private_key_pem.bytes(), None)
    issuer = x509.load_pem_x509_certificate(site.clients.ca.cert_pem.bytes()).subject
    revoked = x509.load_pem_x509_certificate(site.worker.chain.read_bytes()).serial_number
    now = datetime.datetime.now(datetime.UTC)
    entry = x509.RevokedCertificateBuilder().serial_number(revoked).revocation_date(now - DAY).build()
    made = x509.CertificateRevocationListBuilder().issuer_name(issuer).last_update(now - DAY).next_update(now + DAY)
    signed = made.add_revoked_certificate(entry).sign(key, hashes.SHA256())  # type: ignore[arg-type]
    broker = site.serve()
    url = f"opendatas://localhost:{broker.port}"
    with connected(url, ssl=site.ssl(site.worker)):
        pass
    write_private(site.clients.path, site.clients.path.read_bytes() + signed.public_bytes(serialization.Encoding.PEM))
    wait_until(lambda: "were read again" in broker.log.read_text(), 60, broker.log.read_text)
    error = refused(url, ssl=site.ssl(site.worker))
    assert isinstance(error, errors.AccessRefused)
    assert "(certificate revoked)" in str(error)
    with connected(url, ssl=site.ssl(other)):
        pass
    assert broker.terminate() == 0


# ------------------------------------------------------------------ a standby
def test_a_standby_is_a_client_with_the_brokers_own_certificate(site: Site) -> None:
    own = site.clients.issue("broker", "localhost")
    pair = Pair(
        f"file://{site.folder}/store", site.folder, site._started,
        "--tls-cert", str(own.both), "--tls-client-ca", str(site.clients.path),
    )  # fmt: skip
    active, standby = pair.start(), pair.start()
    pair.wait_connected(active)
    given = {"ca_certs": str(site.clients.path), "certfile": str(site.worker.both)}
    with connected(f"opendatas://localhost:{active.port},localhost:{standby.port}", ssl=given) as connection:
        channel = connection.channel()
        declare(channel, "q")
        send(channel, "q", "kept")
        assert active.terminate() == 0
        assert take_bodies(channel, "q") == ["kept"]
    assert standby.terminate() == 0


# ------------------------------------------------------------------ files that change
def test_new_certificates_are_for_new_connections(site: Site) -> None:
    broker = site.serve()
    url = f"opendatas://localhost:{broker.port}"
    with connected(url, ssl=site.ssl(site.worker)) as before:
        declare(before.channel(), "q")
        write_private(site.server.both, site.server.both.read_bytes().replace(b"BEGIN CERT", b"NO CERT"))
        wait_until(lambda: "TLS stays as it was" in broker.log.read_text(), 60, broker.log.read_text)
        with connected(url, ssl=site.ssl(site.worker)) as beside:
            send(beside.channel(), "q", "still here")

        hosts, clients = Authority(site.folder, "hosts2"), Authority(site.folder, "clients2")
        write_private(site.clients.path, clients.path.read_bytes())
        write_private(site.server.both, hosts.issue("server2", "localhost").both.read_bytes())
        worker = clients.issue("worker2", "worker.example.org")
        given = {"ca_certs": str(hosts.path), "certfile": str(worker.both)}
        wait_until(lambda: "were read again" in broker.log.read_text(), 60, broker.log.read_text)
        with connected(url, ssl=given) as after:
            send(after.channel(), "q", "new")
        assert "certificate" in str(refused(url, ssl=site.ssl(site.worker)))
        assert isinstance(
            refused(url, ssl={**site.ssl(site.worker), "ca_certs": str(hosts.path)}), errors.AccessRefused
        )
        assert take_bodies(before.channel(), "q") == ["still here", "new"]
    assert broker.terminate() == 0


def test_the_end_of_a_certificate_is_a_metric_and_a_warning(site: Site) -> None:
    end = (datetime.datetime.now(datetime.UTC) + 10 * DAY).replace(microsecond=0)
    write_private(site.server.both, site.hosts.issue("short", "localhost", not_after=end).both.read_bytes())
    broker = site.serve("--metrics", "0")
    found = scrape(broker.report["metrics_port"])
    name = "opendata_queue_tls_certificate_expiry_timestamp_seconds"
    assert found.value(name, certificate="server") == end.timestamp()
    assert found.value(name, certificate="client_ca") > end.timestamp()
    expected = f"the TLS certificate {site.server.both} expires in 10.0 days: replace the file"
    wait_until(lambda: expected in broker.log.read_text(), 60, broker.log.read_text)
    assert broker.log.read_text().count("expires in") == 1
    assert broker.terminate() == 0
