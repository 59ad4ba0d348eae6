"""A team's day: two hosts with workers, one loses its link or its broker, and everything that is published runs once.

The tests share the hosts and run in this order; producers and workers never stop. Tasks are acknowledged early and
late. Only a host that is cut off for longer than a lease lasts may see its own tasks run a second time elsewhere.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from kombu_opendata.broker.standby.active_role import EXIT_FENCED
from tests.support.waiting import pass_time

from ..support.network import Cut
from ..support.processes import wait_until
from .tally import Event, held_at_cut
from .two_hosts import HOSTS, TwoHosts, two_hosts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    with two_hosts(tmp_path_factory.mktemp("hosts")) as running:
        yield running


def check(hosts: TwoHosts, may_repeat: Callable[[list[Event]], bool] = lambda events: False) -> None:
    """Everything goes on, everything that was confirmed has run, and nothing ran twice without an excuse."""
    began = time.monotonic()
    hosts.tally.wait_progress()
    progress = time.monotonic() - began
    hosts.tally.settle()
    print(f"all went on after {progress:.1f} s;", dict(hosts.tally.check(may_repeat)), "exits:", hosts.exits)
    for worker in hosts.workers.values():
        worker.check()


def other(host: str) -> str:
    return HOSTS[1 - HOSTS.index(host)]


@pytest.mark.parametrize("how", list(Cut), ids=lambda how: how.name.lower())
@pytest.mark.parametrize("side", ["active", "standby"])
@pytest.mark.parametrize("seconds", [1, 10])
def test_a_short_cut_is_survived_by_all_tasks(hosts: TwoHosts, seconds: float, side: str, how: Cut) -> None:
    active = hosts.wait_ready()
    host = active if side == "active" else other(active)
    hosts.network.cut(host, how)
    pass_time(seconds)
    hosts.network.restore(host)
    check(hosts)


def test_the_active_broker_is_killed(hosts: TwoHosts) -> None:
    active = hosts.wait_ready()
    with hosts.held_down(active):
        hosts.signal(active, signal.SIGKILL)
        hosts.wait_active(other(active))
        check(hosts)


def test_the_standby_is_killed(hosts: TwoHosts) -> None:
    active = hosts.wait_ready()
    hosts.signal(other(active), signal.SIGKILL)
    check(hosts)
    assert hosts.is_active(active)


def test_the_active_broker_is_frozen_and_goes_on(hosts: TwoHosts) -> None:
    active = hosts.wait_ready()
    hosts.signal(active, signal.SIGSTOP)
    hosts.wait_active(other(active))
    hosts.tally.settle()
    ended = len(hosts.exits)
    hosts.signal(active, signal.SIGCONT)
    wait_until(lambda: (active, EXIT_FENCED) in hosts.exits[ended:], 60, hosts.logs)
    check(hosts)
    assert hosts.is_active(other(active))


def test_both_brokers_are_restarted(hosts: TwoHosts) -> None:
    hosts.wait_ready()
    before = list(hosts.brokers.values())
    for host in HOSTS:
        hosts.signal(host, signal.SIGTERM)
    wait_until(lambda: all(broker.ended for broker in before), 60, hosts.logs)
    check(hosts)


def test_certificates_and_users_change(hosts: TwoHosts) -> None:
    active = hosts.wait_ready()
    old = {host: hosts.certificate(host) for host in HOSTS}
    assert hosts.ask("auditor") != 0
    hosts.issue_certificates()
    hosts.write_users("worker", "producer", "auditor")
    for host in HOSTS:
        hosts.signal(host, signal.SIGHUP)
    wait_until(lambda: hosts.ask("auditor") == 0, 60, hosts.logs)
    wait_until(lambda: all(hosts.certificate(host) != old[host] for host in HOSTS), 60, hosts.logs)
    check(hosts)
    with hosts.held_down(active):
        hosts.signal(active, signal.SIGKILL)
        hosts.wait_active(other(active))
        assert hosts.ask("auditor") == 0
        check(hosts)


@pytest.mark.parametrize(("side", "how"), [("active", Cut.SILENT), ("standby", Cut.DOWN)])
def test_after_a_long_cut_only_what_the_host_held_runs_again(hosts: TwoHosts, side: str, how: Cut) -> None:
    active = hosts.wait_ready()
    host = active if side == "active" else other(active)
    long = hosts.send_long_tasks(6, 40)
    hosts.tally.wait_begun(long)
    hosts.network.cut(host, how)
    cut_at = time.monotonic()
    pass_time(90)
    hosts.network.restore(host)
    check(hosts, held_at_cut(host, cut_at))
    repeated = hosts.tally.repeated().keys() & long
    assert {hosts.tally.events("runs")[number][0].host for number in repeated} <= {host}


def test_nothing_is_left(hosts: TwoHosts) -> None:
    hosts.stop_producers()
    hosts.tally.settle()
    hosts.tally.check()
    assert hosts.waiting_messages() == 0
