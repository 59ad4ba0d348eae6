"""Hosts on a network of their own: network namespaces around a switch, whose links can be cut. Needs root."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial

import pytest

from .processes import wait_until

_serial = itertools.count()
_SUBNET = "10.77.0"
_CLONE_NEWNET = 0x40000000
#: seconds for the switch to notice that a port is up
_UP_SECONDS = 60


class Cut(Enum):
    """How a link is cut."""

    DOWN = "the host sees it: its interface is down, and it can send nothing"
    SILENT = "the switch drops what the host sends and gets; nobody is told"


class Network:
    """Hosts by name, each a network namespace with an address, all on one switch."""

    def __init__(self, *hosts: str) -> None:
        self._prefix = f"odq{os.getpid() % 100_000}x{next(_serial)}"
        self._hosts = hosts
        self._switch = f"{self._prefix}-switch"

    def address(self, host: str) -> str:
        return f"{_SUBNET}.{self._hosts.index(host) + 1}"

    def inside(self, host: str) -> tuple[str, ...]:
        """What to put before a command to run it on the host."""
        return ("ip", "netns", "exec", self._name(host))

    def namespace(self, host: str) -> str:
        """The file that stands for the host, for :func:`enter`."""
        return f"/run/netns/{self._name(host)}"

    @contextmanager
    def entered(self, host: str) -> Iterator[None]:
        """Have the thread that calls this connect from the host, and the threads that it starts."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            enter(self.namespace(host))
            yield
        finally:
            _set_namespace(own)
            os.close(own)

    def cut(self, host: str, how: Cut) -> None:
        """From now on no packet reaches the host or leaves it."""
        if how is Cut.DOWN:
            _ip("-n", self._name(host), "link", "set", "eth0", "down")
        else:
            _run("ip", "netns", "exec", self._switch, "bridge", "link", "set", "dev", f"to-{host}", "state", "0")

    def restore(self, host: str) -> None:
        """The host is back. The switch refuses the state as long as it has not noticed that the port is up."""
        _ip("-n", self._name(host), "link", "set", "eth0", "up")
        state = ("ip", "netns", "exec", self._switch, "bridge", "link", "set", "dev", f"to-{host}", "state", "3")
        forwards = partial(subprocess.run, state, capture_output=True, check=False)
        wait_until(lambda: forwards().returncode == 0, _UP_SECONDS, f"the switch forwards to {host}")

    def delay(self, host: str, milliseconds: int) -> None:
        """From now on what the host sends is late by so much, or by half as much; 0 ends it. Needs netem."""
        queue = ("tc", "-n", self._name(host), "qdisc")
        if milliseconds:
            times = f"{milliseconds}ms", f"{milliseconds // 2}ms"
            _run(*queue, "replace", "dev", "eth0", "root", "netem", "delay", *times)
        else:
            _run(*queue, "delete", "dev", "eth0", "root")

    def make(self) -> None:
        """Make the namespaces and what connects them."""
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for host in self._hosts:
            name = self._name(host)
            _ip("netns", "add", name)
            _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"to-{host}", "netns", self._switch)
            _ip("-n", self._switch, "link", "set", f"to-{host}", "master", "switch", "up")
            _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")

    def remove(self) -> None:
        """Remove what is there, also after a :meth:`make` that failed half way."""
        for name in (*map(self._name, self._hosts), self._switch):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def _name(self, host: str) -> str:
        return f"{self._prefix}-{host}"


def enter(namespace: str) -> None:
    """Move the thread that calls this to a host."""
    file = os.open(namespace, os.O_RDONLY)
    try:
        _set_namespace(file)
    finally:
        os.close(file)


def _set_namespace(file: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def missing() -> str:
    """Return why there can be no network here; empty if there can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None or shutil.which("bridge") is None:
        return "iproute2 is not installed"
    return ""


def has_netem() -> bool:
    """Return True if the kernel can delay packets."""
    with network("probe") as made:
        try:
            made.delay("probe", 1)
        except (AssertionError, FileNotFoundError):
            return False
        return True


@contextmanager
def network(*hosts: str) -> Iterator[Network]:
    """A network that is gone at the end. Its processes must be gone by then."""
    if reason := missing():
        (pytest.fail if os.environ.get("CI") and os.geteuid() == 0 else pytest.skip)(reason)
    made = Network(*hosts)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, f"{' '.join(command)}: {done.stderr}"
