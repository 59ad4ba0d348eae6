"""One run on real processes: brokers, clients, faults, and at the end the history with the store that is left."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Container
from contextlib import AbstractContextManager, nullcontext, suppress
from http.client import HTTPException
from pathlib import Path

from kombu_opendata.cli.exit_codes import REPLACED
from kombu_opendata.errors import OpenDataError

from ..support.network import Network
from ..support.processes import tail, wait_until
from ..support.s3 import BUCKET
from ..support.s3_proxy import S3Proxy
from ..support.scrape import fetch, scrape
from ..support.tcp_proxy import TcpProxy
from ..support.users import user_table, write_users
from ..support.waiting import random_moment
from . import events as e
from .all_programs import PROGRAMS
from .broker_program import BrokerSetup
from .processes import Broker, Fork
from .programs import Run
from .queue_programs import DEFINITIONS, SHARES, connected, measure_shares
from .recorder import Recorder
from .scenario import CLIENT_HOSTS, RULES, Client, Scenario, host_names
from .store_reader import findings, read_store
from .system_faults import Control

SECONDS = 240.0
PROGRESS_BYTES = 500
_STEP_SECONDS = 0.05
#: programs that end when no more is published
PUBLISHERS = ("produce", "write_letters", "fill_box", "send_tasks", "drive_jobs", "steer", "trespass", "weigh")


class Slot:
    """The place of a broker: its port, its clock and disk, and the network before it. Its successors have the same."""

    def __init__(self, number: int, folder: Path, has_network: bool, hosts: Network | None) -> None:
        self.number = number
        self.host = f"broker{number}" if hosts is not None else ""
        self.address = hosts.address(self.host) if hosts is not None else "127.0.0.1"
        self.control = Control(folder / f"control{number}")
        self.proxy = TcpProxy(0) if has_network else None
        self.listen_port = 0
        self.broker: Broker
        self.seen_at = 0.0

    @property
    def port(self) -> int:
        """Where clients connect."""
        return self.proxy.port if self.proxy is not None else self.listen_port

    def close(self) -> None:
        if self.proxy is not None:
            self.proxy.close()
        self.control.close()


class RealRun:
    """The processes of a scenario, in a folder of their own.

    Args:
        library: that of :mod:`.system_faults`.
        bucket: the proxy before the bucket, and the environment that names it.
        hosts: where brokers and clients run; None for the host of this process.

    Attributes:
        clock_ahead: by how many seconds the brokers' clocks are wrong.
        may_end: whether a fault explains that a broker ends.
        faults: how often each kind struck; ``kills`` counts the processes that were killed.
    """

    def __init__(
        self,
        scenario: Scenario,
        library: Path,
        bucket: tuple[S3Proxy, dict[str, str]] | None,
        hosts: Network | None = None,
    ) -> None:
        self.scenario, self.hosts = scenario, hosts
        self.host_names = host_names(scenario)
        self.dice = random.Random(f"run {scenario.seed}")
        self.folder = Path(tempfile.mkdtemp(prefix=f"odq-{scenario.seed}-", dir="/tmp"))
        self.record = Recorder(self.folder, "runner")
        self.bucket = bucket[0] if bucket is not None else None
        self._environment = bucket[1] if bucket is not None else {}
        self.store = f"s3://{BUCKET}/{self.folder.name}" if bucket is not None else f"file://{self.folder / 'store'}"
        self._library = library
        maintain_seconds = self.dice.choice((0.2, 10))
        self._options: tuple[str, ...] = ("--store", self.store, "--maintain-every", str(maintain_seconds))
        self._options = (*self._options, "--metrics", "0")
        if scenario.has_users:
            self._options = (*self._options, "--users", str(_users(self.folder / "users.toml")), "--allow-cleartext")
        elif hosts is not None:
            self._options = (*self._options, "--allow-anonymous")
        self.slots = [
            Slot(number, self.folder, scenario.has_network, hosts) for number in range(1 + scenario.has_standby)
        ]
        self.clients: dict[str, Fork] = {}
        self.programs: dict[str, Client] = {}
        self._ended: list[Fork] = []
        self.may_end = False
        self.clock_ahead = 0.0
        self._system_ahead = time.time() - time.monotonic()
        self.faults: Counter[str] = Counter()
        self.kills = 0

    # ------------------------------------------------------------------ brokers
    def start_broker(self, slot: Slot) -> None:
        """Start a broker in a slot; it may be killed before it says that it is ready."""
        options: tuple[str, ...] = (*self._options, "--listen", f"tcp:{slot.address}:{slot.listen_port}")
        if slot.proxy is not None:
            options = (*options, "--advertise", f"127.0.0.1:{slot.port}")
        if self.scenario.has_standby:
            options = (*options, "--standby")
        setup = BrokerSetup(
            options=options,
            grace_seconds=self.scenario.grace_seconds,
            environment=self._environment,
            library=str(self._library),
            control=str(slot.control.path),
            namespace=self._namespace(slot.host),
        )
        slot.broker = Broker(f"broker{len(self._ended)}-{slot.number}", self.folder, setup)
        slot.seen_at = time.monotonic()

    def await_broker(self, slot: Slot) -> None:
        """Wait until it listens; what it says is recorded, also that it refuses the store."""
        broker = slot.broker
        report = broker.wait_report()
        error = "" if "listening" in report else str(report.get("text", tail(broker.log)))
        self.record.add(e.Started, broker=broker.name, error=error)
        assert not error, f"{broker.name} does not start: {error}"
        slot.listen_port = broker.port
        if slot.proxy is not None:
            slot.proxy.target = broker.port

    def crash(self, slot: Slot) -> None:
        """SIGKILL for the broker of a slot."""
        self.record.add(e.Crashed, broker=slot.broker.name)
        slot.broker.kill()
        self.kills += 1

    def start_successor(self, slot: Slot) -> None:
        """Start another broker where one has ended."""
        self._ended.append(slot.broker)
        self.start_broker(slot)

    def replace(self, slot: Slot) -> None:
        """Start another broker where one has ended, and wait for it."""
        self.start_successor(slot)
        self.await_broker(slot)

    def replace_ended(self) -> None:
        """Replace the brokers that ended by a fault; without one, it is an error. Record a step of the system clock."""
        ahead = time.time() - time.monotonic()
        if abs(step := ahead - self._system_ahead) > _STEP_SECONDS:
            self.record.add(e.ClockSet, seconds=step)
            self._system_ahead = ahead
        for slot in self.slots:
            if slot.broker.is_running:
                slot.seen_at = time.monotonic()
                continue
            code = slot.broker.wait()
            assert self.may_end_with(code), f"{slot.broker.name} ended with {code}:\n{tail(slot.broker.log)}"
            self.record.add(e.Crashed, broker=slot.broker.name, how="ended", since=slot.seen_at)
            slot.control.disarm()
            self.replace(slot)

    def may_end_with(self, code: int) -> bool:
        """Return True if a broker may end with this exit code: a standby also replaces one on a busy machine."""
        return self.may_end or (self.scenario.has_standby and code == REPLACED)

    @property
    def url(self) -> str:
        user = "root:x@" if self.scenario.has_users else ""
        return f"opendata://{user}{','.join(f'{slot.address}:{slot.port}' for slot in self.slots)}"

    def _namespace(self, host: str) -> str:
        return self.hosts.namespace(host) if self.hosts is not None else ""

    def _entered(self, host: str) -> AbstractContextManager[None]:
        """The thread that calls this connects from a host, where the run has hosts."""
        return self.hosts.entered(host) if self.hosts is not None else nullcontext()

    # ------------------------------------------------------------------ clients
    def start_client(self, client: Client) -> None:
        run = Run(folder=self.folder, url=self.url, seed=self.scenario.seed, environment=self._environment)
        log = self.folder / f"{client.name}.log"
        self.programs[client.name] = client
        host = CLIENT_HOSTS[len(self._ended) + len(self.clients) & 1]
        self.clients[client.name] = Fork(
            client.name,
            log,
            PROGRAMS[client.program],
            run,
            client.name,
            *client.arguments,
            namespace=self._namespace(host),
        )

    def kill_client(self, name: str) -> None:
        """SIGKILL for a client, and another one in its place."""
        self.record.lost("killed", name)
        process, client = self.clients.pop(name), self.programs[name]
        process.kill()
        process.kill_group()
        self.kills += 1
        self._ended.append(process)
        self.start_client(Client(program=client.program, name=f"{name}-again", arguments=client.arguments))

    # ------------------------------------------------------------------ the run
    def go(self, left_out: Container[str] = ()) -> list[e.History]:
        """Run the scenario to its end without some faults; returns the history, and that of the damaged store."""
        from .strikes import STRIKES

        for slot in self.slots:
            self.start_broker(slot)
            self.await_broker(slot)
        for client in self.scenario.clients:
            self.start_client(client)
        self._wait_for_all()
        for fault in self.scenario.faults:
            if fault in left_out:
                continue
            self.wait_for_progress()
            self.count_outcomes()
            random_moment(self.dice, 0.3)
            STRIKES[fault](self)
            self.faults[fault] += 1
        self.wait_for_progress()
        self._end()
        history = self._history()
        return [history, self._damaged(history)] if self.scenario.is_damaged else [history]

    def _wait_for_all(self) -> None:
        """Until each client has done something; a worker or a consumer may have nothing to do."""
        files = [
            self.folder / f"{name}.events" for name, client in self.programs.items() if client.program in PUBLISHERS
        ]
        wait_until(lambda: all(file.exists() and file.stat().st_size for file in files), SECONDS, self.state)

    def _size(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("*.events"))

    def wait_for_progress(self) -> None:
        """Until the clients have done something more; brokers that a fault ended are replaced."""
        before = self._size()

        def has_progress() -> bool:
            self.replace_ended()
            return self._size() > before + PROGRESS_BYTES

        wait_until(has_progress, SECONDS, self.state)

    def count_outcomes(self) -> None:
        """Record what the brokers have counted; a fault may keep one from answering."""
        for slot in self.slots:
            with suppress(OSError, HTTPException), self._entered(slot.host):
                samples = scrape(slot.broker.report["metrics_port"]).samples
                runs = Counter[str]()
                for sample in samples:
                    if sample.name == "opendata_queue_task_runs_total":
                        runs[sample.labels["task"]] += int(sample.value)
                self.record.add(e.Counted, runs=dict(runs))

    def state(self) -> str:
        """The logs, for the message of a run that is stuck."""
        return "\n".join(f"{log}:\n{tail(log, 8)}" for log in sorted(self.folder.glob("*.log")))

    def _end(self) -> None:
        (self.folder / "end").touch()
        for name, client in self.clients.items():
            if self.programs[name].program in PUBLISHERS:
                self._wait_for(client)
        self._wait_until_quiet()
        self.count_outcomes()
        (self.folder / "drained").touch()
        for name, client in self.clients.items():
            if is_worker := self.programs[name].program == "work":
                client.signal(signal.SIGTERM)
            self._wait_for(client, *([-signal.SIGTERM] if is_worker else []))  # it may not have begun

    def _wait_for(self, client: Fork, *other_codes: int) -> None:
        def has_ended() -> bool:
            self.replace_ended()
            return not client.is_running

        wait_until(has_ended, SECONDS, lambda: f"the end of {client.name}:\n{self.state()}")
        assert client.wait() in (0, *other_codes), f"{client.name}:\n{tail(client.log)}"

    def _wait_until_quiet(self) -> None:
        """Until nothing was recorded for a moment: what is left then is in the store."""
        quiet_since, size = time.monotonic(), self._size()
        deadline = quiet_since + SECONDS
        while time.monotonic() < min(quiet_since + 0.3, deadline):
            time.sleep(0.02)
            self.replace_ended()
            if self._size() != size:
                quiet_since, size = time.monotonic(), self._size()

    # ------------------------------------------------------------------ afterwards
    def _history(self) -> e.History:
        programs = {client.program for client in self.scenario.clients}
        crashed = [self.dice.choice(self.slots)]
        if "weigh" in programs:  # the shares are measured of a broker without reads by groups, so of a new one
            crashed = self.slots
        for slot in crashed:
            self.crash(slot)
        for slot in crashed:
            self.replace(slot)
        events = e.read_events(sorted(self.folder.glob("*.events")))
        operations = [event.operation for event in events if isinstance(event, e.Called)]
        tasks = {operation.task for operation in operations if isinstance(operation, e.StoreResult)}
        definitions = (*(DEFINITIONS if "steer" in programs else ()), *([SHARES] if "weigh" in programs else ()))
        with self._entered(CLIENT_HOSTS[0]):
            store = read_store(self.url, RULES, sorted(tasks), definitions)
            if "weigh" in programs and not self.scenario.is_damaged:  # the damaged store has only what was published
                with connected(self.url, "measurer") as client:
                    measure_shares(client, self.record)
        for slot in reversed(self.slots):
            code = slot.broker.terminate()
            assert code == 0 or self.may_end_with(code), f"{slot.broker.name} ended ({code}):\n{tail(slot.broker.log)}"
        store.findings = findings(self.store)
        events = e.read_events(sorted(self.folder.glob("*.events")))
        return e.History(events=events, store=store, rules=RULES)

    def _damaged(self, history: e.History) -> e.History:
        """Flip a bit of a file that the brokers left, and read the store again."""
        folder = self.folder / "store"
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".spare")
        files = [path for path in files if path.stat().st_size]
        # each kind alike: most files are manifests that newer ones have replaced, where a flip has no effect
        kind = self.dice.choice(sorted({path.parent for path in files}))
        file = self.dice.choice([path for path in files if path.parent == kind])
        data = bytearray(file.read_bytes())
        at = self.dice.randrange(len(data))
        data[at] ^= 1 << self.dice.randrange(8)
        file.write_bytes(data)
        self.faults["flip a bit"] += 1
        name = f"bit of byte {at} of {file.relative_to(folder)}"
        store = self._read_damaged(findings(self.store, notes=True))
        damage = e.Damaged(at=time.monotonic(), file=name)
        return e.History(events=(*history.events, damage), store=store, rules=history.rules)

    def _read_damaged(self, found: tuple[str, ...]) -> e.Store:
        slot = self.slots[0]
        self.start_successor(slot)
        report = slot.broker.wait_report()
        if "listening" not in report:
            return e.Store(refusal=str(report.get("text", "no report")), findings=found)
        wait_until(lambda: not slot.broker.is_running or self._has_opened(slot), SECONDS, self.state)
        if not slot.broker.is_running:  # it listens before it opens the store
            return e.Store(refusal=tail(slot.broker.log, 1), findings=found)
        slot.listen_port = slot.broker.port
        if slot.proxy is not None:
            slot.proxy.target = slot.broker.port
        try:
            with self._entered(CLIENT_HOSTS[0]):
                store = read_store(self.url, RULES)
        except OpenDataError as exc:
            return e.Store(refusal=str(exc), findings=found)
        store.findings, store.runs = found, None
        return store

    def _has_opened(self, slot: Slot) -> bool:
        """Return True if its broker has opened the store."""
        address = slot.broker.report["metrics_port"], "/readyz"
        with suppress(OSError, HTTPException), self._entered(slot.host), fetch(*address):
            return True
        return False

    def clean_up(self) -> None:
        """End all processes, whatever happened."""
        for process in (*self.clients.values(), *self._ended):
            process.clean_up()
        for slot in self.slots:
            if hasattr(slot, "broker"):
                slot.broker.clean_up()
            slot.close()
        self.record.close()


def _users(path: Path) -> Path:
    own = dict.fromkeys(("configure", "write", "read"), "eve-.*")
    tables = user_table("root", "x", roles=("admin",)), user_table("eve", "x", {"default": own})
    return write_users(path, *tables)
