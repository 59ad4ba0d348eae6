"""The faults of a run, by their names in a scenario."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from ..support.network import Cut
from ..support.processes import wait_until
from ..support.s3_proxy import Fault, Request
from ..support.tcp_proxy import TcpProxy
from ..support.waiting import pass_time, random_moment
from . import events as e
from .real_run import RealRun, Slot
from .system_faults import DiskFault

Strike = Callable[[RealRun], None]
#: how long a fault may take to strike, and a process is stopped
_MOMENT_SECONDS = 0.5
_ENDS_SECONDS = 240


def kill_a_broker(run: RealRun) -> None:
    slot = run.dice.choice(run.slots)
    run.crash(slot)
    run.replace(slot)


def kill_a_broker_twice(run: RealRun) -> None:
    """The second time while it starts."""
    slot = run.dice.choice(run.slots)
    run.crash(slot)
    run.start_successor(slot)
    random_moment(run.dice, _MOMENT_SECONDS)
    run.crash(slot)
    run.replace(slot)


def stop_a_broker(run: RealRun) -> None:
    """SIGSTOP, and SIGCONT a moment later: another broker may have taken over."""
    slot = run.dice.choice(run.slots)
    run.may_end = run.may_end or run.scenario.has_standby
    slot.broker.signal(signal.SIGSTOP)
    random_moment(run.dice, _MOMENT_SECONDS)
    slot.broker.signal(signal.SIGCONT)


def end_a_broker(run: RealRun) -> None:
    """SIGTERM: a clean end, or a hand-over to the standby."""
    slot = run.dice.choice(run.slots)
    began_at = time.monotonic()
    slot.broker.terminate(_ENDS_SECONDS)
    run.record.add(e.Crashed, broker=slot.broker.name, how="SIGTERM", since=began_at)
    run.replace(slot)


def disk_fault(run: RealRun) -> None:
    """Let a call of the broker fail, or kill the broker in the middle of it or before the disk has room again."""
    slot, fault = run.dice.choice(run.slots), run.dice.choice(list(DiskFault))
    armed_at = time.monotonic()
    run.may_end = True
    slot.control.arm(fault, run.dice.randrange(30))
    deadline = armed_at + _MOMENT_SECONDS + run.dice.random()
    while time.monotonic() < deadline and slot.broker.is_running and not slot.control.struck():
        pass_time(0.01)
    if slot.control.struck():
        run.faults[f"disk: {fault.name.lower().replace('_', ' ')}"] += 1
        if fault.is_kill:
            run.kills += 1
            wait_until(lambda: not slot.broker.is_running, _ENDS_SECONDS, "the end of the broker")
        else:
            random_moment(run.dice, _MOMENT_SECONDS)
            if slot.broker.is_running and run.dice.random() < 0.5:
                run.crash(slot)
    slot.control.disarm()
    if not slot.broker.is_running:
        run.record.add(e.Crashed, broker=slot.broker.name, how=fault.name, since=armed_at)
        run.replace(slot)


def set_the_clock(run: RealRun) -> None:
    """Forward by less than a lease lasts, or back by up to an hour, while the brokers run."""
    seconds = run.dice.choice((run.dice.uniform(1, 50), -run.dice.uniform(1, 3600)))
    run.record.add(e.ClockSet, seconds=seconds)
    run.clock_ahead += seconds
    for slot in run.slots:
        slot.control.set_clock(run.clock_ahead)


def kill_a_client(run: RealRun) -> None:
    run.kill_client(run.dice.choice(sorted(run.clients)))


def stop_a_client(run: RealRun) -> None:
    process = run.clients[run.dice.choice(sorted(run.clients))]
    process.signal(signal.SIGSTOP)
    random_moment(run.dice, _MOMENT_SECONDS)
    process.signal(signal.SIGCONT)


def cut_the_network(run: RealRun) -> None:
    _proxy(run.dice.choice(run.slots)).cut()


def hold_the_network(run: RealRun) -> None:
    proxy = _proxy(run.dice.choice(run.slots))
    proxy.hold()
    random_moment(run.dice, _MOMENT_SECONDS)
    if run.dice.random() < 0.5:
        proxy.cut()
    proxy.go_on()


def cut_a_link(run: RealRun) -> None:
    """No packet reaches a host; in between its broker may be killed, and its clients' connections do not end."""
    assert run.hosts is not None
    host = run.dice.choice(run.host_names)
    run.hosts.cut(host, run.dice.choice(list(Cut)))
    random_moment(run.dice, 2 * _MOMENT_SECONDS)
    killed = [slot for slot in run.slots if slot.host == host and run.dice.random() < 0.5]
    for slot in killed:
        run.crash(slot)
    run.hosts.restore(host)
    for slot in killed:
        run.replace(slot)


def drop_packets(run: RealRun) -> None:
    """The link of a host loses what is sent in several moments, and repairs itself between them."""
    assert run.hosts is not None
    host = run.dice.choice(run.host_names)
    for _ in range(run.dice.randrange(2, 6)):
        run.hosts.cut(host, Cut.SILENT)
        random_moment(run.dice, 0.2 * _MOMENT_SECONDS)
        run.hosts.restore(host)
        random_moment(run.dice, 0.2 * _MOMENT_SECONDS)


def delay_packets(run: RealRun) -> None:
    """Delay what a host sends, and change its order."""
    assert run.hosts is not None
    host = run.dice.choice(run.host_names)
    run.hosts.delay(host, run.dice.randrange(10, 300))
    random_moment(run.dice, 2 * _MOMENT_SECONDS)
    run.hosts.delay(host, 0)


def _proxy(slot: Slot) -> TcpProxy:
    assert slot.proxy is not None
    return slot.proxy


def fail_the_bucket(run: RealRun) -> None:
    """Some requests fail or lose their answers."""
    assert run.bucket is not None
    run.may_end = True
    kinds, rate = [Fault.SLOW_DOWN, Fault.INTERNAL, Fault.CUT, Fault.CUT_ANSWER], run.dice.uniform(0.1, 0.9)

    def rule(_request: Request) -> Fault | None:
        return run.dice.choice(kinds) if run.dice.random() < rate else None

    run.bucket.rule = rule
    random_moment(run.dice, 2 * _MOMENT_SECONDS)
    run.bucket.go_on()


def hold_the_bucket(run: RealRun) -> None:
    """Requests, or their answers, are late; in between the broker may be killed."""
    assert run.bucket is not None
    run.may_end = True
    run.bucket.stop_answering(run.dice.choice((Fault.SILENCE, Fault.LATE)))
    random_moment(run.dice, 2 * _MOMENT_SECONDS)
    killed = run.dice.choice(run.slots) if run.dice.random() < 0.5 else None
    if killed is not None:
        run.crash(killed)
    run.bucket.go_on()
    if killed is not None:
        run.replace(killed)


STRIKES: dict[str, Strike] = {
    strike.__name__.replace("_", " "): strike
    for strike in (
        cut_a_link, cut_the_network, delay_packets, disk_fault, drop_packets, end_a_broker, fail_the_bucket,
        hold_the_bucket, hold_the_network, kill_a_broker,
        kill_a_broker_twice, kill_a_client, set_the_clock, stop_a_broker, stop_a_client,
    )
}  # fmt: skip
