"""A backup or a restore that is killed in the middle does no harm, and the same command goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kombu_opendata import QueueClient

from ..support.backups import bodies
from ..support.broker import EmbeddedBroker
from ..support.served import COMMAND
from ..support.verified import assert_verified
from ..support.workers import APPS


def backups(target: Path) -> list[Path]:
    return list((target / "backups").glob("*.json"))


def killed(number: int, *arguments: object) -> bool:
    """Run the command, which dies in its Nth file; whether it came to that."""
    program = [sys.executable, str(APPS / "dies_writing.py"), str(number), "store", *map(str, arguments)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode in (0, -9), ended.stderr
    return ended.returncode == -9


def test_killed_in_the_middle_of_a_file(store_folder: Path, tmp_path: Path) -> None:
    store, target, restored = store_folder / "store", tmp_path / "backups", store_folder / "restored"
    sent = [b"%04d" % number + bytes(20_000) for number in range(500)]
    with QueueClient(f"opendata://{store}") as client:
        client.create("q")
        for start in range(0, 500, 100):
            client.send_batch("q", sent[start : start + 100])
    EmbeddedBroker(store).terminate()
    kills = 0
    while killed(2 * kills + 1, "backup", target, store):
        kills += 1
        assert not backups(target)
    assert kills > 1
    assert killed(1, "backup", target, store)  # its description: the whole of another one stays
    assert len(backups(target)) == 1
    kills = 0
    while killed(2 * kills + 1, "restore", target, restored):
        kills += 1
        if kills == 2:  # the first file that is written is the mark, and the second run got on to others
            listen = f"unix:{restored}/broker.sock"
            broker = [str(COMMAND), "broker", "--store", f"file://{restored}", "--listen", listen]
            started = subprocess.run(broker, capture_output=True, text=True, timeout=60, check=False)
            assert (started.returncode, "restore' again" in started.stderr) == (1, True), started.stderr
    assert kills > 1
    assert_verified(restored)
    assert sorted(bodies(restored, "q")) == sent
