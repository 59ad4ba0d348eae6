"""The faults of a simulation, at the times of its plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..histories import events as e
from .brokers import Broker
from .clients import KombuClient
from .plan import CLIENTS, LARGE, Step

if TYPE_CHECKING:
    from .world import World

#: factor of the time for which one broker alone has no bucket: long enough for the other one to take over
_TAKE_OVERS = 4


class Faults:
    """The faults of one world. Each takes ``choice``, a number from 0 to 1, and ``seconds``, how long it lasts.

    Attributes:
        counts: the faults that struck, by their kind.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.counts: Counter[str] = Counter()
        self._restores: list[Callable[[], None]] = []

    def strike(self, step: Step) -> None:
        if getattr(self, step.action)(**step.arguments) is not False:
            self.counts[step.action.replace("_", " ")] += 1

    def _broker(self, choice: float) -> Broker | None:
        """Return a running broker, the active one more often."""
        running = [broker for broker in self._world.brokers.values() if broker.process is not None]
        active = [broker for broker in running if broker.is_active]
        if active and choice < 0.7:
            return active[0]
        return running[int(choice * 1000) % len(running)] if running else None

    def _client(self, choice: float) -> str:
        return CLIENTS[int(choice * 1000) % len(CLIENTS)]

    def _later(self, seconds: float, end: Any, *arguments: Any) -> None:
        self._world.loop.call_later(seconds, end, *arguments)

    # ------------------------------------------------------------------ processes
    def kill(self, choice: float, seconds: float) -> bool | None:
        broker = self._broker(choice)
        if broker is None:
            return False
        broker.kill()
        return None

    def shut_down(self, choice: float, seconds: float) -> bool | None:
        broker = self._broker(choice)
        if broker is None or broker.server is None or broker.process is None:
            return False
        broker.process.context.run(broker.server.terminate, "SIGTERM")
        return None

    def hand_over(self, choice: float, seconds: float) -> bool | None:
        return self.shut_down(choice, seconds)

    def upgrade(self, choice: float, seconds: float) -> bool | None:
        """Replace a broker of an older version; what it wrote to a journal is in the older form."""
        older = [each for each in self._world.brokers.values() if each.is_older and each.process is not None]
        if not older or self._world.bucket.is_damaged:
            return False
        broker, disk = older[int(choice * len(older))], self._world.disk
        broker.kill("upgrade")
        broker.is_older = False
        if disk is not None:
            disk.make_older()
        return None

    def stop(self, choice: float, seconds: float) -> bool | None:
        broker = self._broker(choice)
        if broker is None or broker.process is None or broker.process.is_stopped:
            return False
        process = broker.process
        process.stop()
        self._later(seconds, process.proceed)
        return None

    def restart_client(self, choice: float, seconds: float) -> None:
        name = self._client(choice)
        client = self._world.clients[name]
        steps = list(client.steps)
        client.kill()
        for connection in self._world.network.of_process(client.label):
            connection.reset()
        self._world.start_client(name, client.life + 1)
        for step in steps[1:]:
            self._world.clients[name].take(step)

    def stop_client(self, choice: float, seconds: float) -> bool | None:
        client = self._world.clients[self._client(choice)]
        if client.process.is_stopped:
            return False
        client.process.stop()
        self._later(seconds, client.process.proceed)
        return None

    # ------------------------------------------------------------------ network and clock
    def partition(self, choice: float, seconds: float) -> None:
        client = self._world.clients[self._client(choice)]
        broker = list(self._world.brokers)[int(choice * 7919) % len(self._world.brokers)]
        link = frozenset((client.label, broker))
        self._world.network.partition(link)
        self._later(seconds, self._world.network.heal, link)

    def reset(self, choice: float, seconds: float) -> bool | None:
        connections = list(self._world.network.connections)
        if not connections:
            return False
        connections[int(choice * len(connections))].reset()
        return None

    def repeat_request(self, choice: float, seconds: float) -> bool | None:
        """Let a client send a request again that was answered over a connection before."""
        client = self._world.clients[self._client(choice)]
        if not isinstance(client, KombuClient):
            return False
        for connection in self._world.network.of_process(client.label):
            connection.reset()
        for place in (choice, 1 - choice):
            client.take(Step(0.0, client.name, "repeat", {"place": place}))
        return None

    def slow_network(self, choice: float, seconds: float) -> None:
        network = self._world.network
        network.slow_seconds = 0.2 * choice
        self._later(seconds, setattr, network, "slow_seconds", 0.0)

    def set_clock(self, choice: float, seconds: float) -> None:
        by = round((choice - 0.5) * 20 * seconds, 3)
        self._world.host.offset_seconds += by
        self._world.record.add(e.ClockSet, seconds=by)
        if choice < 0.25:  # the clock of a broker that starts after this stands still
            for broker in self._world.brokers.values():
                broker.kill()

    # ------------------------------------------------------------------ store
    def fail_write(self, choice: float, seconds: float) -> None:
        self._world.bucket.failures.append("write")

    def fail_answer(self, choice: float, seconds: float) -> None:
        self._world.bucket.failures.append("answer")

    def fail_record_write(self, choice: float, seconds: float) -> None:
        self._world.bucket.failures.append("record write")

    def fail_record_read(self, choice: float, seconds: float) -> None:
        self._world.bucket.failures.append("record read")

    def fail_record_answer(self, choice: float, seconds: float) -> None:
        self._world.bucket.failures.append("record answer")

    def slow_store(self, choice: float, seconds: float) -> None:
        self._slow(self._world.brokers, choice, seconds)

    def silent_store(self, choice: float, seconds: float) -> None:
        self._silence(self._world.brokers, seconds)

    def slow_store_of_broker(self, choice: float, seconds: float) -> bool | None:
        """Delay the requests of one broker to the bucket, longer than those to an active record may take."""
        broker = self._broker(choice)
        if broker is None:
            return False
        self._slow([broker.name], 8 * choice, _TAKE_OVERS * seconds)
        return None

    def isolate_broker(self, choice: float, seconds: float) -> bool | None:
        """Cut off one broker from the bucket while the other one can use it."""
        broker = self._broker(choice)
        if broker is None:
            return False
        self._silence([broker.name], _TAKE_OVERS * seconds)
        return None

    def _slow(self, names: Iterable[str], choice: float, seconds: float) -> None:
        bucket = self._world.bucket
        bucket.slow_seconds |= dict.fromkeys(names, 0.5 * choice)
        self._later(seconds, bucket.slow_seconds.clear)

    def _silence(self, names: Iterable[str], seconds: float) -> None:
        bucket = self._world.bucket
        bucket.silent.update(names)
        self._later(seconds, bucket.silent.clear)

    # ------------------------------------------------------------------ disk
    def lose_power(self, choice: float, seconds: float) -> bool | None:
        broker, disk = self._world.brokers["a"], self._world.disk
        assert disk is not None
        if broker.process is None:
            return False
        for client in self._world.clients.values():  # the claims of its deliveries may be undone
            client.record.lost("cut")
            client.has_lost = True
        broker.kill("power loss", synced_at=disk.synced_at)
        disk.lose_power()
        self._world.bucket.lose_power()
        return None

    def tear_write(self, choice: float, seconds: float) -> None:
        disk = self._world.disk
        assert disk is not None
        disk.torn = self._world.brokers["a"].kill

    def fill_disk(self, choice: float, seconds: float) -> None:
        disk = self._world.disk
        assert disk is not None
        disk.is_full, disk.is_copying = True, int(choice * 1000) % 2 == 0
        self._later(seconds, self._make_room, choice < 0.5)

    def _make_room(self, kills: bool) -> None:
        """End a full disk; a broker that is killed before must have answered nothing that it did not store."""
        world = self._world
        assert world.disk is not None
        if kills and world.disk.is_full:
            world.brokers["a"].kill()
        world.disk.is_full = False

    def fail_sync(self, choice: float, seconds: float) -> None:
        disk = self._world.disk
        assert disk is not None
        disk.failing.add("sync")

    def fail_store_sync(self, choice: float, seconds: float) -> None:
        disk = self._world.disk
        assert disk is not None
        disk.failing.add("sync of the store")

    def flip_journal_bit(self, choice: float, seconds: float) -> bool | None:
        """Change a bit of the journal of a broker that is killed; one that needs it refuses it until it is right."""
        disk = self._world.disk
        assert disk is not None
        self._world.brokers["a"].kill()
        return self._flip(disk.flip_bit(), seconds)

    def flip_segment_bit(self, choice: float, seconds: float) -> bool | None:
        """Change a bit of a payload segment until it is right again: the messages that are read until then fail."""
        disk, publishes = (
            self._world.disk,
            [step.arguments for step in self._world.plan.steps if step.action == "publish"],
        )
        assert disk is not None
        keys = tuple(arguments["key"] for arguments in publishes if arguments["size"] >= LARGE)
        restore = disk.flip_segment_bit()
        if restore is not None:
            self._world.record.add(e.Unreadable, keys=keys)
        return self._flip(restore, seconds)

    def _flip(self, restore: Callable[[], None] | None, seconds: float) -> bool | None:
        if restore is None:
            return False
        self._damage(seconds)
        self._restores.append(restore)
        self._later(seconds, self._restore, restore)
        return None

    def _damage(self, seconds: float) -> None:
        """Let brokers refuse the store, also a moment after it is restored."""
        bucket = self._world.bucket
        bucket.damaged_until = max(bucket.damaged_until, self._world.loop.time() + seconds + 2.0)

    def _restore(self, restore: Callable[[], None]) -> None:
        if restore in self._restores:
            self._restores.remove(restore)
            restore()

    def flip_row_bit(self, choice: float, seconds: float) -> bool | None:
        """Change a stored row, whose checksum then fails, until it is right again."""
        bucket = self._world.bucket
        if not bucket.durable:
            return False
        key = sorted(bucket.durable)[int(choice * len(bucket.durable))]
        self._damage(seconds)
        bucket.flipped.add(key)
        self._later(seconds, bucket.flipped.discard, key)
        return None

    # ------------------------------------------------------------------ the end
    def heal(self) -> None:
        """End all faults."""
        world = self._world
        world.network.slow_seconds = 0.0
        for link in list(world.network.partitions):
            world.network.heal(link)
        world.bucket.slow_seconds.clear()
        world.bucket.silent.clear()
        world.bucket.failures.clear()
        if world.disk is not None:
            world.disk.is_full, world.disk.torn = False, None
            world.disk.failing.clear()
        world.bucket.flipped.clear()
        for restore in list(self._restores):
            self._restore(restore)
        for broker in world.brokers.values():
            if broker.process is not None:
                broker.process.proceed()
        for client in world.clients.values():
            client.process.proceed()
