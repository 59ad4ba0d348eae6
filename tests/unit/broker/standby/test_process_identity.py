"""Whether another process on this host has ended; of other hosts and containers nothing is known."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kombu_opendata.broker.standby.process_identity import has_ended, own_process


def test_a_process_has_ended_when_it_is_gone_or_a_zombie() -> None:
    program = "from kombu_opendata.broker.standby.process_identity import own_process; print(own_process())"
    child = subprocess.Popen([sys.executable, "-c", f"{program}; input()"], stdin=-1, stdout=-1, text=True)
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    assert not has_ended(name)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(name)
    child.communicate()
    assert has_ended(name)


def test_a_later_process_with_the_same_number_is_another_one() -> None:
    place, pid, started = own_process().rsplit("/", 2)
    assert not has_ended(f"{place}/{pid}/{started}")
    assert has_ended(f"{place}/{pid}/{int(started) + 1}")


@pytest.mark.parametrize("name", ["", "nonsense", "a/b/c/d", "other-boot/4026531836/1/1"])
def test_of_other_hosts_nothing_is_known(name: str) -> None:
    assert not has_ended(name)
