"""Two hosts with a broker, a worker and a producer each, and a third one with the bucket that is the store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..support.certificates import Authority
from ..support.network import Network, network
from ..support.pair import ACTIVE
from ..support.processes import Child, children, tail, wait_until
from ..support.s3 import BUCKET
from ..support.served import COMMAND
from ..support.users import user_table, write_users
from ..support.workers import APPS, Worker
from .tally import Tally

HOSTS = ("a", "b")
PORT, S3_PORT = 5677, 9000
S3_MILLISECONDS = 5
#: when a broker that ended is started again, as systemd does it
RESTART_SECONDS = 1.0
#: what a broker says about its role, beside ACTIVE
_STANDBY, _REPLACED = "standby: the active broker is at", "has taken over the store: this one ends"
ROOT = Path(__file__).parents[2]


class CountedWorker(Worker):
    app = "counted"

    def __init__(self, inside: tuple[str, ...], url: str, folder: Path, name: str, **settings: Any) -> None:
        self.inside = inside
        super().__init__(url, folder, name, pool="prefork", concurrency=3, **settings)


class TwoHosts:
    """The running hosts.

    Attributes:
        network: whose links a test cuts.
        brokers: the process that runs on each host now.
        exits: how each broker ended, in order: host and exit code.
        tally: what was published and run.
    """

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.folder = folder
        self.tally = Tally(folder)
        self.authority = Authority(folder)
        self.users = folder / "users.toml"
        self.brokers: dict[str, Child] = {}
        self.workers: dict[str, CountedWorker] = {}
        self.producers: list[Child] = []
        self.exits: list[tuple[str, int]] = []
        self._held: set[str] = set()
        self._long = 0
        self._tables: dict[str, str] = {}  # of users; a new hash of the same secret would end their connections
        self._over = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise)

    # ------------------------------------------------------------ what runs
    def run(self) -> Iterator[TwoHosts]:
        """Start everything, and end it."""
        with children() as started:
            s3 = [*self.network.inside("store"), sys.executable, str(APPS / "s3_host.py"), str(S3_PORT)]
            bucket = Child([*s3, str(S3_MILLISECONDS)], self.folder / "s3.log", cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
            started.add(bucket)
            wait_until(lambda: b"PUT /" in bucket.log.read_bytes(), 60, lambda: tail(bucket.log))
            self.issue_certificates()
            self.write_users("worker", "producer")
            try:
                for host in HOSTS:
                    self._start_broker(host)
                self._supervisor.start()
                self.wait_active()
                for host in HOSTS:
                    self.workers[host] = self._worker(host)
                    started.add(self.workers[host])
                for worker in self.workers.values():
                    worker.wait_ready()
                for host in HOSTS:
                    self.producers.append(self._producer(host))
                    started.add(self.producers[-1])
                self.tally.wait_progress()
                yield self
            finally:
                self._over.set()
                if self._supervisor.ident:
                    self._supervisor.join()
                for broker in self.brokers.values():
                    broker.clean_up()

    def url(self, user: str) -> str:
        hosts = ",".join(f"{self.network.address(host)}:{PORT}" for host in HOSTS)
        return f"opendatas://{user}:{user}-secret@{hosts}"

    @property
    def tls(self) -> dict[str, str]:
        return {"ca_certs": str(self.authority.path)}

    def issue_certificates(self) -> None:
        """New certificates of the same authority for both brokers."""
        for host in HOSTS:
            self.authority.issue(host, self.network.address(host))

    def write_users(self, *names: str) -> None:
        for name in names:
            self._tables.setdefault(name, user_table(name, f"{name}-secret"))
        write_users(self.users, *(self._tables[name] for name in names))

    def _start_broker(self, host: str) -> None:
        number = len(list(self.folder.glob(f"broker-{host}-*.log")))
        address = self.network.address(host)
        options = (
            f"--store=s3://{BUCKET}/team", f"--listen=tcp:{address}:{PORT}", f"--users={self.users}",
            f"--tls-cert={self.folder}/{host}.pem", f"--tls-key={self.folder}/{host}.key.pem",
        )  # fmt: skip
        self.brokers[host] = Child(
            [*self.network.inside(host), str(COMMAND), "broker", "--standby", *options],
            self.folder / f"broker-{host}-{number}.log",
            cwd=self.folder,
            env={
                "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT": f"http://{self.network.address('store')}:{S3_PORT}", "AWS_ALLOW_HTTP": "true",
            },
        )  # fmt: skip

    def _worker(self, host: str) -> CountedWorker:
        os.environ["COUNTED_LOG"] = str(self.folder / f"runs-{host}.log")
        name, inside = f"worker-{host}", self.network.inside(host)
        return CountedWorker(inside, self.url("worker"), self.folder, name, broker_use_ssl=self.tls)

    def _producer(self, host: str) -> Child:
        # That of b waits through any cut; that of a gives up, and what it gave up may run or not.
        return self._produce(host, host, 1 + 1_000_000 * HOSTS.index(host), 5 if host == "a" else 150)

    def send_long_tasks(self, count: int, seconds: float) -> set[int]:
        """Send tasks that take so long and are acknowledged late; returns their numbers when they are confirmed."""
        self._long += 1000
        first = 10_000_000 + self._long
        sent = self._produce("store", f"long{first}", first, 60, str(count), str(seconds))
        assert sent.wait(60) == 0, tail(sent.log)
        return set(range(first, first + count))

    def _produce(self, host: str, name: str, first: int, patience: float, *count_and_seconds: str) -> Child:
        options = {"broker_use_ssl": self.tls, "broker_transport_options": {"reconnect_timeout": patience}}
        arguments = (str(self.folder / f"sent-{name}.log"), str(first), json.dumps(options), *count_and_seconds)
        command = [sys.executable, str(APPS / "produce_counted.py"), self.url("producer"), *arguments]
        return Child([*self.network.inside(host), *command], self.folder / f"producer-{name}.log", cwd=ROOT)

    def stop_producers(self) -> None:
        for producer in self.producers:
            assert producer.terminate(180) == 0, tail(producer.log)

    # ------------------------------------------------------------ questions
    def ask(self, user: str) -> int:
        """The exit code of a command that lists the queues as this user."""
        return self._command("queue", "list", "--json", "--url", self.url(user)).returncode

    def waiting_messages(self) -> int:
        """How many messages the store's queue has, claimed ones included."""
        done = self._command("queue", "metrics", "celery", "--json", "--url", self.url("worker"))
        assert done.returncode == 0, done.stderr
        (queue,) = json.loads(done.stdout)
        return int(queue["length"])

    def certificate(self, host: str) -> str:
        """The certificate that the host's broker shows."""
        program = "import ssl, sys; print(ssl.get_server_certificate((sys.argv[1], int(sys.argv[2])), timeout=5))"
        command = [sys.executable, "-c", program, self.network.address(host), str(PORT)]
        done = subprocess.run([*self.network.inside("store"), *command], capture_output=True, text=True, check=False)
        return done.stdout

    def _command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self.network.inside("store"), str(COMMAND), *arguments, "--tls-ca", str(self.authority.path)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    # ------------------------------------------------------------ brokers that end
    def _supervise(self) -> None:
        while not self._over.wait(0.1):
            for host, broker in list(self.brokers.items()):
                if broker.ended and host not in self._held:
                    self.exits.append((host, broker.process.wait()))
                    if not self._over.wait(RESTART_SECONDS):
                        self._start_broker(host)

    @contextmanager
    def held_down(self, *hosts: str) -> Iterator[None]:
        """Brokers that end there are started again only at the end."""
        self._held.update(hosts)
        try:
            yield
        finally:
            self._held.clear()

    def signal(self, host: str, number: signal.Signals) -> None:
        os.kill(self.brokers[host].pid, number)

    # ------------------------------------------------------------ who is active
    def is_active(self, host: str) -> bool:
        return self._role(host) == ACTIVE

    def _role(self, host: str) -> str:
        """What the broker of this host said last about its role."""
        broker = self.brokers.get(host)
        if broker is None or broker.ended:
            return ""
        log = broker.log.read_text(errors="replace")
        return max(("starting", ACTIVE, _STANDBY, _REPLACED), key=log.rfind)

    def wait_active(self, host: str | None = None, seconds: float = 60) -> str:
        """Wait until this host's broker is the active one, or any."""
        wanted = HOSTS if host is None else (host,)
        wait_until(lambda: any(map(self.is_active, wanted)), seconds, self.logs)
        return next(filter(self.is_active, wanted))

    def wait_ready(self) -> str:
        """Wait until one broker is active, the other one stands by, and everything goes on; returns the active host."""
        active = self.wait_active()
        (other,) = set(HOSTS) - {active}
        wait_until(lambda: self._role(other) == _STANDBY, 60, self.logs)
        self.tally.wait_progress()
        return active

    def logs(self) -> str:
        """The ends of all logs, for a failure."""
        return "\n".join(f"--- {path.name}\n{tail(path, 15)}" for path in sorted(self.folder.glob("*.log")))


@contextmanager
def two_hosts(folder: Path) -> Iterator[TwoHosts]:
    """Make the network and what runs on it; nothing is left at the end."""
    with network(*HOSTS, "store") as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUNTED_LOG", "")
        yield from TwoHosts(made, folder).run()
