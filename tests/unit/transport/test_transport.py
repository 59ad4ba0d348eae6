"""The transport: URLs as Kombu hands them over, options, draining, the event loop."""

from __future__ import annotations

import pickle
import re
import socket
import subprocess
import sys
import threading
from collections import deque
from typing import Any

import pytest
from kombu import asynchronous, pools
from kombu import connection as kombu_connection
from kombu.pools import producers

from kombu_opendata import errors
from kombu_opendata.client.session.session_link import LinkState
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.messages import Hello
from kombu_opendata.transport import TLSTransport, Transport
from kombu_opendata.transport.connection_fields import address_of
from kombu_opendata.transport.event_loop import BATCH
from kombu_opendata.transport.transport import options_of
from kombu_opendata.url import Address, parse

# untyped
KombuConnection: Any = kombu_connection.Connection
Hub: Any = asynchronous.Hub


def test_importing_it_loads_no_storage_and_no_writer_of_batches() -> None:
    """Each client and each worker imports it."""
    probe = (
        "import sys, kombu_opendata.transport; "
        "bad = [m for m in sys.modules if m.startswith(('slatedb', 'kombu_opendata.storage', "
        "'kombu_opendata.broker', 'kombu_opendata.staging.batch_writer', 'kombu_opendata.staging.folder'))]; "
        "sys.exit(', '.join(bad) or 0)"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


@pytest.mark.parametrize(
    "url",
    [
        "opendata:///tmp/some%20where",
        "opendata://u:secret@host:5/inst",
        "opendatas://host",
        "opendata+memory://name",
    ],
)
def test_kombu_hands_the_url_over_whole(url: str) -> None:
    connection = KombuConnection(url)
    assert address_of(connection) == parse(url)
    assert address_of(connection.clone()) == parse(url)
    assert "secret" not in connection.as_uri()
    assert parse(connection.as_uri(include_password=True)) == parse(url)


def test_failing_over_ends_at_each_url_in_turn() -> None:
    urls = ["opendata://u:s@a:1/one", "opendatas://b", "opendata:///tmp/q", "opendata+memory://m"]
    connection = KombuConnection(";".join(urls))
    for url in [*urls, *urls]:
        assert address_of(connection) == parse(url)
        assert address_of(connection.clone()) == parse(url)
        assert parse(connection.as_uri(include_password=True)) == parse(url)
        connection.maybe_switch_next()


def fields(connection: Any) -> dict[str, Any]:
    names = ("transport", "hostname", "port", "userid", "password", "virtual_host")
    info = connection.info()
    return {name: info[name] for name in names}


def test_the_fields_are_those_of_other_transports() -> None:
    url = "//alice:s3%2Fcret@broker.example:1234/inst"
    ours, theirs = (fields(KombuConnection(f"{scheme}:{url}")) for scheme in ("opendata", "amqp"))
    assert ours == {**theirs, "transport": "opendata"}
    again = pickle.loads(pickle.dumps(KombuConnection(f"opendata:{url}")))
    assert fields(again) == ours


def test_the_fields_of_a_folder() -> None:
    connection = KombuConnection("opendata:///srv/a%3Bb")
    shown = {"transport": "opendata", "hostname": "/srv/a%3Bb", "port": None, "userid": None, "password": None}
    for one in (connection, connection.clone(), connection.clone().clone()):
        assert fields(one) == {**shown, "virtual_host": "default"}
        assert address_of(one) == parse("opendata:///srv/a%3Bb")


def test_no_field_shows_a_secret_when_it_is_logged() -> None:
    connection = KombuConnection("opendata://a:s3cret@one;opendata://b:s3cret@two")
    for _ in range(3):
        info = connection.info()
        assert "s3cret" not in f"{info} {connection!r} {connection.as_uri()}"
        assert info["password"] == "s3cret"
        connection.maybe_switch_next()


def test_kombus_pools_know_the_connection_again() -> None:
    connection = KombuConnection("opendata://u:s@host")
    pool = producers[connection]
    assert connection.info()["hostname"] == "host"
    assert producers[connection] is pool
    assert producers[KombuConnection("opendata://u:s@host")] is pool
    assert producers[KombuConnection("opendata://u:s@elsewhere")] is not pool
    pools.reset()  # type: ignore[no-untyped-call]


def test_a_hello_shows_no_secret() -> None:
    assert "s3cret" not in repr(Hello(1, b"s" * 16, "n", "default", "u", "s3cret"))


def test_a_callable_secret_is_asked_for_the_whole_uri() -> None:
    connection = KombuConnection("opendata://host/inst", userid="u", password=lambda: "fresh")
    assert connection.as_uri(include_password=True) == "opendata://u:fresh@host:5677/inst"
    assert "fresh" not in connection.as_uri()


@pytest.mark.parametrize("second", ["opendata://b:s3c/ret@two", "opendata://b:s3c[ret@two"])
def test_a_wrong_url_to_fail_over_to_is_said_at_the_first_connect(second: str) -> None:
    one = KombuConnection("opendata://one")
    one.alt = ["opendata://one", second]  # a URL with a '[' does not pass Kombu's constructor
    with pytest.raises(errors.InvalidURL) as caught:
        one.connect()
    assert "s3c" not in str(caught.value)


def test_a_list_of_hosts_may_be_failed_over_to() -> None:
    urls = ["opendata://u:s3cret@a,b/x", "opendata://v:s3cret@c,d/y"]
    connection = KombuConnection(";".join(urls))
    for url in (*urls[1:], *urls):
        connection.maybe_switch_next()
        assert address_of(connection) == parse(url)
        assert connection.info()["hostname"] == parse(url).hosts
        assert "s3cret" not in connection.as_uri()


def test_a_list_with_ports_can_not_be_failed_over_to() -> None:
    with pytest.raises(errors.InvalidURL, match="can't fail over to a list of hosts with ports") as caught:
        KombuConnection("opendata://one;opendata://b:s3cret@two:1,three:2").connect()
    assert "s3cret" not in str(caught.value)


def test_user_and_secret_may_come_beside_the_url() -> None:
    connection = KombuConnection("opendata://host", userid="u", password=lambda: "fresh", connect_timeout=3)
    options = options_of(connection)
    assert (options.user, options.resolve_secret(), options.connect_timeout) == ("u", "fresh", 3)


def test_transport_options() -> None:
    given = {"reconnect_timeout": 2, "idle_exit": 5, "consumer_name": "me", "max_retries": 3}
    options = options_of(KombuConnection("opendata://host", transport_options=given))
    assert (options.reconnect_timeout, options.idle_exit, options.name, options.start_timeout) == (2, 5, "me", 15)


def test_transport_options_may_be_texts_as_in_an_ini_file() -> None:
    given = {"pipeline_depth": "100", "publish_mode": "pipeline", "task_outcomes": "false", "close_timeout": "2"}
    options = options_of(KombuConnection("opendata://host", transport_options=given))
    assert (options.pipeline_depth, options.pipelined, options.task_outcomes, options.close_timeout) == (
        100, True, False, 2,
    )  # fmt: skip


def test_an_unknown_transport_option_is_refused_at_connect() -> None:
    connection = KombuConnection("opendata://host", transport_options={"pipeline_dept": 3})
    with pytest.raises(errors.RequestError, match="'pipeline_dept' is unknown; did you mean 'pipeline_depth'"):
        connection.connect()


def test_the_tls_scheme_turns_tls_on() -> None:
    connection = KombuConnection("opendatas://host")
    assert isinstance(connection.transport, TLSTransport)
    assert options_of(connection).tls is True
    assert options_of(KombuConnection("opendata://host")).tls is None


def test_a_wrong_url_is_said_at_connect_and_shown_masked() -> None:
    connection = KombuConnection("opendata://u:secret@host/inst?y")
    assert "secret" not in connection.as_uri()
    with pytest.raises(errors.InvalidURL):
        connection.connect()
    with pytest.raises(errors.InvalidURL, match="given to the broker"):
        KombuConnection("opendata://s3://bucket").connect()


@pytest.mark.parametrize("second", ["opendata", "opendatas", "memory+x"])
def test_a_second_scheme_is_refused(second: str) -> None:
    with pytest.raises(errors.InvalidURL, match=re.escape(f"'opendata+{second}' is not one of")):
        KombuConnection(f"opendata+{second}://host/app").connect()


def test_a_dead_host_is_an_error_that_kombu_retries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    connection = KombuConnection(f"opendata://127.0.0.1:{port}")
    with pytest.raises(errors.ConnectionLost) as caught:
        connection.connect()
    assert isinstance(caught.value, connection.recoverable_connection_errors)


class Connection:
    """Stands in for a BrokerConnection on an event loop; its socket is a pair's end."""

    gated: list[Any] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.link = self.io = self.session = self.settlements = self
        self.reports: list[Any] = []
        self.lock = threading.RLock()
        self.observer: Any = None
        self.closed = False
        self.events: deque[Any] = deque()
        self.channels: dict[int, Any] = {1: self}
        self.delivered: list[int] = []
        self.incoming: list[Any] = []
        self.backoff = 0.01
        self.attempts = iter([True])

    @property
    def state(self) -> LinkState:
        return LinkState.CLOSED if self.closed else LinkState.OPEN

    def fileno(self) -> int:
        return self.near.fileno()

    def read_available(self) -> None:
        self.near.recv(100)
        self.events.extend(self.incoming)
        self.incoming = []

    def resume_once(self) -> bool:
        return next(self.attempts)

    def deliver(self, event: Any) -> None:
        self.delivered.append(event.id)

    def flush_reports(self) -> None:
        self.reports.clear()


def delivery(number: int) -> m.Delivery:
    return m.Delivery(1, "t", "q", number, 7, 1, b"", False)


@pytest.fixture
def on_loop() -> Any:
    connection, hub = Connection(), Hub()
    transport = Transport(None)
    transport.register_with_event_loop(connection, hub)  # type: ignore[arg-type]
    yield connection, hub, transport
    hub.close()
    connection.near.close()
    connection.far.close()


def test_the_loop_hands_out_what_came(on_loop: Any) -> None:
    connection, hub, _ = on_loop
    connection.incoming = [delivery(n) for n in range(BATCH + 2)]
    connection.far.send(b"x")
    hub.run_once()
    assert connection.delivered == list(range(BATCH)), "the rest waits for the loop's other work"
    for _ in range(2):
        hub.run_once()
    assert connection.delivered == list(range(BATCH + 2))


def test_a_report_gets_a_timer_only_when_no_delivery_is_at_hand(on_loop: Any) -> None:
    connection, hub, _ = on_loop
    connection.events.extend(delivery(n) for n in range(BATCH + 1))
    connection.observer.events_buffered()
    connection.reports.append("of a success")
    assert connection.observer.will_flush()
    hub.run_once()
    assert connection.delivered == list(range(BATCH))
    assert len(hub.timer) == 0
    assert connection.reports, "it goes with the next delivery's ack"
    while connection.reports:  # the timer ends each wait of the loop
        hub.run_once()
    assert connection.delivered == list(range(BATCH + 1))


def test_the_loop_is_told_of_what_no_poller_sees(on_loop: Any) -> None:
    connection, hub, _ = on_loop
    connection.events.append(delivery(7))
    other = threading.Thread(target=connection.observer.events_buffered)
    other.start()
    other.join()
    hub.run_once()
    assert connection.delivered == [7]


def test_a_callback_that_fails_loses_nothing(on_loop: Any) -> None:
    connection, hub, _ = on_loop
    connection.events.extend([delivery(1), delivery(2)])

    def fail_once(event: Any) -> None:
        del connection.deliver
        raise ValueError("in a callback")

    connection.deliver = fail_once
    connection.observer.events_buffered()
    with pytest.raises(ValueError, match="in a callback"):
        hub.run_once()
    hub.run_once()  # Kombu's loop notices that its generator ended
    hub.run_once()
    assert connection.delivered == [2]


def test_the_loop_follows_the_socket_and_retries_by_its_timer(on_loop: Any) -> None:
    connection, hub, _ = on_loop
    observer, old = connection.observer, connection.fileno()
    observer.socket_closing(old)
    assert old not in hub.readers
    connection.attempts = iter([False, False, True])
    observer.connection_lost()
    observer.connection_lost()  # is said once
    while connection.attempts.__length_hint__():
        hub.run_once()
    observer.socket_opened(old)
    assert old in hub.readers


def test_a_lost_connection_reaches_the_loops_owner(on_loop: Any) -> None:
    connection, hub, transport = on_loop

    def lost() -> bool:
        raise errors.ConnectionLost("not resumed")

    connection.resume_once = lost
    connection.observer.connection_lost()
    with pytest.raises(transport.recoverable_connection_errors, match="not resumed"):
        hub.run_once()


def test_leaving_the_loop(on_loop: Any) -> None:
    connection, hub, transport = on_loop
    transport.unregister_from_event_loop(connection, hub)
    assert connection.fileno() not in hub.readers
    assert connection.observer is None


def test_the_folder_of_a_url_is_absolute() -> None:
    assert address_of(KombuConnection("opendata:///q")) == Address("embedded", folder="/q")
