"""The broker's process: how it starts, and how it ends."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.errors import InvalidConfiguration, StartError, StartInterrupted
from kombu_opendata.protocol import messages as m
from kombu_opendata.url import parse

from ...support.broker import EmbeddedBroker
from ...support.kombu_client import declare, open_connection, send, take_bodies
from ...support.plain_store import PlainStore
from ...support.processes import Child, Children, is_running, wait_until
from ...support.raw import RawClient, publish
from ...support.served import ServedBroker


def test_the_first_client_starts_it(connect: Callable[..., Any], store_folder: Path, broker: EmbeddedBroker) -> None:
    folder = store_folder / "new"
    connect(f"opendata://{folder}")
    pid = int((folder / "broker.pid").read_text())
    assert is_running(pid)
    assert os.getsid(pid) != os.getsid(0), "a signal to the client's terminal must not reach the broker"
    modes = {
        name: stat.S_IMODE((folder / name).stat().st_mode) for name in ("", "broker.sock", "broker.lock", "broker.log")
    }
    assert modes == {"": 0o700, "broker.sock": 0o600, "broker.lock": 0o600, "broker.log": 0o600}
    assert stat.S_IMODE((folder / "default").stat().st_mode) == 0o700
    assert stat.S_ISSOCK((folder / "broker.sock").stat().st_mode)
    assert f"listening on unix:{folder}/broker.sock" in (folder / "broker.log").read_text()
    connect(f"opendata://{folder}")
    assert int((folder / "broker.pid").read_text()) == pid, "the second client attaches"


def test_ten_clients_that_race_get_one_broker(
    script: Callable[..., Child], connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker
) -> None:
    code = """
channel.queue_declare("race", durable=True, auto_delete=False)
channel.basic_publish(channel.prepare_message("x"), routing_key="race")
print(open(sys.argv[1].removeprefix("opendata://") + "/broker.pid").read())
connection.close()
"""
    clients = [script(code, f"client{number}") for number in range(10)]
    assert [client.wait(60) for client in clients] == [0] * 10, [client.log.read_text() for client in clients]
    assert {client.log.read_text().strip() for client in clients} == {str(broker.pid())}
    assert connect(broker_url).channel()._size("race") == 10
    assert broker.log.read_text().count("listening on") == 1


def test_threads_that_race_start_one_broker(broker_url: str, broker: EmbeddedBroker) -> None:
    """The log has a line of each broker that finds the store in use."""
    connections = [BrokerConnection(parse(broker_url), Options(start_timeout=60)) for _ in range(8)]
    threads = [threading.Thread(target=connection.connect) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in connections:
        assert not connection.closed
        connection.close()
    assert "another broker" not in broker.log.read_text()
    assert broker.log.read_text().count("listening on") == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"log_format": "xml"}, "--log-format: 'xml' is not one of text, json"),
        ({"nonsense": 1}, "No such option '--nonsense'"),
        ({"metrics": "here:there"}, "--metrics: 'here:there' is not HOST:PORT"),
    ],
)
def test_options_that_are_wrong_are_told_in_a_line(broker_url: str, options: dict[str, Any], text: str) -> None:
    connection = BrokerConnection(parse(broker_url), Options(broker_options=options))  # which checks nothing itself
    with pytest.raises(StartError) as told:
        connection.connect()
    assert type(told.value) in (StartError, InvalidConfiguration)
    assert text in told.value.text
    assert "\n" not in told.value.text


@pytest.mark.parametrize("package", ["click", "slatedb"])
def test_a_client_is_told_at_once_what_a_broken_installation_lacks(
    broker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """Another attempt would not help, so the client does not wait for its ``start_timeout``."""
    (tmp_path / f"{package}.py").write_text(f"raise ImportError('there is no {package}')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    connection = BrokerConnection(parse(broker_url), Options(start_timeout=300))
    with pytest.raises(StartError, match=f"there is no {package}") as refused:
        connection.connect()
    assert not isinstance(refused.value, StartInterrupted)


def test_a_second_broker_on_the_same_store_is_refused(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, serve: Callable[..., ServedBroker]
) -> None:
    channel = connect(broker_url).channel()
    second = serve()
    assert second.report["code"] == "store_in_use"
    assert f"another broker (pid {broker.pid()}) owns" in second.report["text"]
    assert second.wait(60) == 1
    declare(channel, "still")
    assert broker.pid() is not None


def test_a_file_in_place_of_the_socket_is_left_alone(store_folder: Path, serve: Callable[..., ServedBroker]) -> None:
    precious = store_folder / "by-hand.sock"
    precious.write_text("precious")
    refused = serve()
    assert refused.report["code"] == "start_error"
    assert "by-hand.sock exists and is not a socket" in refused.report["text"]
    assert refused.wait(60) == 1
    assert precious.read_text() == "precious"


def test_a_socket_in_use_is_left_alone(
    store_folder: Path, serve: Callable[..., ServedBroker], started: Children
) -> None:
    first = serve()
    options = ("--store", f"file://{store_folder}/other", "--listen", f"unix:{store_folder}/by-hand.sock")
    second = ServedBroker(store_folder, *options)
    started.add(second)
    assert second.report["code"] == "start_error"
    assert "by-hand.sock" in second.report["text"]
    assert second.wait(60) == 1
    with RawClient(f"{store_folder}/by-hand.sock") as raw:
        raw.hello()
    assert first.terminate() == 0


def test_it_ends_when_no_client_is_left(broker_url: str, broker: EmbeddedBroker, store_folder: Path) -> None:
    connection = open_connection(broker_url, idle_exit=2)
    channel = connection.channel()
    declare(channel, "kept")
    send(channel, "kept", "a")
    pid = broker.wait_up()
    connection.close()
    wait_until(lambda: not is_running(pid), 60, "end of the idle broker")
    assert "stopped: no client for 2 s" in broker.log.read_text()
    assert not (store_folder / "broker.sock").exists()
    assert not (store_folder / "broker.pid").exists()
    with open_connection(broker_url) as again:
        assert take_bodies(again.channel(), "kept") == ["a"]
    assert broker.wait_up() != pid


def test_sigterm_ends_it_cleanly_and_answers_are_kept(serve: Callable[..., ServedBroker], store_folder: Path) -> None:
    served = serve()
    with RawClient(f"{store_folder}/by-hand.sock") as raw:
        raw.hello()
        raw.declare("q")
        rids = [raw.send(publish("q", seq, b"body %d" % seq)) for seq in range(1, 501)]
        ids = [raw.answer(rids[0]).message_id]
        served.process.terminate()
        goodbye = False
        while (message := raw.receive()) is not None:
            if isinstance(message, m.PublishConfirm):
                ids.append(message.message_id)
            goodbye |= isinstance(message, m.BrokerGoodbye)
    assert served.wait(60) == 0, served.log.read_text()
    assert goodbye
    assert "stopped: SIGTERM" in served.log.read_text()
    assert not (store_folder / "by-hand.sock").exists()
    assert not (store_folder / "broker.pid").exists()
    store = PlainStore(store_folder)  # no broker, no journal: a clean end leaves nothing outside of SlateDB
    available, in_flight = store.active("q")
    assert set(ids) <= {row[0] for row in available}
    assert in_flight == []
    assert [store.envelope(row[0]) for row in available] == [b"body %d" % seq for seq in range(1, len(available) + 1)]


def test_a_killed_brokers_lock_and_socket_heal(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "q")
    send(channel, "q", "a")
    killed = broker.kill()
    assert (store_folder / "broker.sock").exists()
    assert (store_folder / "broker.pid").read_text().strip() == str(killed)
    assert take_bodies(connect(broker_url).channel(), "q") == ["a"]
    assert broker.wait_up() != killed
