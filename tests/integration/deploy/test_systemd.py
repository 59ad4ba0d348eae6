"""The units in deploy/systemd: systemd itself reads them, and their command is run as they say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from kombu_opendata import QueueClient

from ...support.command_lines import parse
from ...support.other_users import Account
from ...support.processes import Child, Children
from ...support.served import COMMAND
from ...support.service_manager import NotifySocket
from ...support.unprivileged import needs_root
from .conftest import Configured

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and not os.environ.get("CI"), reason="systemd is not installed"
)

BROKERS = ["opendata-queue.service", "opendata-queue-standby.service"]
UNITS = [*BROKERS, "opendata-queue-backup.service", "opendata-queue-web.service", "celery-worker.service"]
#: as systemd-analyze counts it, times ten: up to 2.0 it says "OK"
MOST_EXPOSED = 20
#: what a process can do of the unit's confinement: prctl with PR_SET_NO_NEW_PRIVS, and with PR_SET_MDWE (Linux 6.3),
#: which is MemoryDenyWriteExecute=
CONFINED = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
libc.prctl(65, 1, 0, 0, 0)
os.umask(0o077)
os.execv(sys.argv[1], sys.argv[1:])
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def values(unit: Path, key: str) -> list[str]:
    """All values of a key in a unit, lines with a backslash at the end joined."""
    return re.findall(rf"(?m)^{key}=(.*)$", unit.read_text().replace("\\\n", ""))


@pytest.fixture
def root(deploy: Path, tmp_path: Path) -> Path:
    """A tree with the units, the programs that they name, and systemd's own units."""
    units = tmp_path / "etc/systemd/system"
    shutil.copytree(deploy / "systemd", units, ignore=shutil.ignore_patterns("*.toml", "*.conf", "shared-folder"))
    shutil.copytree(deploy / "systemd/opendata-queue.service.d", units / "opendata-queue.service.d", dirs_exist_ok=True)
    shutil.copytree("/lib/systemd/system", tmp_path / "usr/lib/systemd/system", symlinks=True)
    for unit in UNITS:
        for words in values(units / unit, "Exec[A-Za-z]*"):
            program = tmp_path / shlex.split(words)[0].lstrip("/")
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("unit", [*UNITS, "opendata-queue-backup.timer"])
def test_systemd_understands_each_line(root: Path, unit: str) -> None:
    done = run("systemd-analyze", "verify", f"--root={root}", unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_confined(root: Path, unit: str) -> None:
    words = ("security", "--no-pager", "--offline=true", f"--root={root}", f"--threshold={MOST_EXPOSED}", unit)
    done = run("systemd-analyze", *words)
    assert done.returncode == 0, done.stdout


def test_a_wrong_line_would_be_noticed(root: Path) -> None:
    unit = root / "etc/systemd/system/opendata-queue.service"
    unit.write_text(unit.read_text().replace("Restart=always", "Restart=sometimes"))
    assert "Failed to parse" in run("systemd-analyze", "verify", f"--root={root}", unit.name).stderr


def test_both_brokers_are_confined_and_restarted_alike(deploy: Path) -> None:
    active, standby = ((deploy / "systemd" / unit).read_text().split("UMask=")[1] for unit in BROKERS)
    assert active == standby


# ------------------------------------------------------------------ options
@pytest.mark.parametrize("file", ["broker.toml", "broker-local.toml"])
def test_the_options_are_real_ones(deploy: Path, configured: Configured, file: str) -> None:
    options = configured(deploy / "systemd" / file)
    assert options.folder is not None
    for unit in BROKERS:
        (command,) = values(deploy / "systemd" / unit, "ExecStart")
        assert parse(shlex.split(command)[1:]).params["config"] == Path("/etc/opendata-queue/broker.toml")


def test_the_backup_is_one_of_the_store_that_is_served(deploy: Path, configured: Configured) -> None:
    (command,) = values(deploy / "systemd/opendata-queue-backup.service", "ExecStart")
    given = parse(shlex.split(command)[1:]).params
    assert Path(given["store"]) == configured(deploy / "systemd/broker.toml").folder
    assert given["keep"] > 1


def test_the_lines_that_are_comments_are_options_too(deploy: Path, configured: Configured, tmp_path: Path) -> None:
    text = (deploy / "systemd/broker.toml").read_text()
    shown = tmp_path / "broker.toml"
    shown.write_text(re.sub(r"(?m)^# ([a-z-]+ = )", r"\1", text))
    assert shown.read_text() != text
    options = configured(shown)
    assert options.standby
    assert options.tls_client_ca is not None


def test_the_standby_differs_by_variables(deploy: Path, configured: Configured) -> None:
    lines = values(deploy / "systemd/opendata-queue-standby.service", "Environment")
    environment = dict(line.replace("%H", "host.example.org").split("=", 1) for line in lines)
    active = configured(deploy / "systemd/broker.toml")
    standby = configured(deploy / "systemd/broker.toml", environment)
    assert standby.standby
    assert standby.store == active.store
    assert not {*standby.listen, standby.metrics} & {*active.listen, active.metrics}


# ------------------------------------------------------------------ users and folders
@needs_root
@pytest.mark.parametrize(
    ("folder", "expected"), [(".", {"opendata-queue"}), ("shared-folder", {"celery", "app-queue", "www-data"})]
)
def test_the_users_and_folders_are_made(deploy: Path, tmp_path: Path, folder: str, expected: set[str]) -> None:
    (tmp_path / "etc").mkdir()
    done = run("systemd-sysusers", f"--root={tmp_path}", str(deploy / "systemd" / folder / "sysusers.conf"))
    assert done.returncode == 0, done.stderr
    groups = dict(line.split(":")[0::2] for line in (tmp_path / "etc/group").read_text().splitlines())
    assert expected <= groups.keys()
    tmpfiles = deploy / "systemd" / folder / "tmpfiles.conf"
    if not tmpfiles.exists():
        return
    done = run("systemd-tmpfiles", f"--root={tmp_path}", "--create", str(tmpfiles))
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "var/lib/app-queue").stat()
    owner = re.search(r"(?m)^celery:x:(\d+):", (tmp_path / "etc/passwd").read_text())
    assert owner is not None
    assert (stat.S_IMODE(made.st_mode), made.st_uid, made.st_gid) == (
        0o750, int(owner[1]), int(groups["app-queue"]),
    )  # fmt: skip


# ------------------------------------------------------------------ the command
@pytest.fixture
def runtime() -> Iterator[Path]:
    """A folder as RuntimeDirectory= makes it: clients trust no socket below /tmp of another user."""
    folder = Path(tempfile.mkdtemp(prefix="odq-", dir="/run"))
    yield folder
    shutil.rmtree(folder)


@needs_root
def test_the_command_of_the_unit_is_run_as_the_unit_says(
    deploy: Path, store_folder: Path, runtime: Path, started: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user, confined as far as a process can confine itself, with the socket that systemd listens on."""
    unit = deploy / "systemd/opendata-queue.service"
    broker = Account(61_010)
    store_folder.chmod(0o711)
    (store_folder / "lib").mkdir()
    for folder, mode in ((store_folder / "lib", 0o700), (runtime, 0o755)):
        os.chown(folder, broker.uid, broker.uid)
        folder.chmod(mode)
    text = (deploy / "systemd/broker-local.toml").read_text()
    for system, own in (
        ("/var/lib/opendata-queue", f"{store_folder}/lib"),
        ("/run/opendata-queue", str(runtime)),
        ('"opendata-queue"', f'"{broker.uid}"'),
        ("127.0.0.1:9464", "127.0.0.1:0"),
    ):
        assert system in text
        text = text.replace(system, own)
    (store_folder / "broker.toml").write_text(text)
    (command,) = values(unit, "ExecStart")
    words = [str(COMMAND) if word.endswith("/opendata-queue") else word for word in shlex.split(command)]
    words = [word.replace("/etc/opendata-queue", str(store_folder)) for word in words]
    (watchdog,) = values(unit, "WatchdogSec")

    with closing(NotifySocket(f"@{store_folder.name}")) as heard:
        monkeypatch.setenv("NOTIFY_SOCKET", heard.address)
        monkeypatch.setenv("WATCHDOG_USEC", str(int(watchdog) * 1_000_000))
        child = Child(broker.python(CONFINED, *words), store_folder / "unit.log", cwd=Path("/"))
        started.add(child)
        heard.hear_until(lambda said: "READY=1" in said)
        with QueueClient(f"opendata://{quote(f'{runtime}/broker.sock', safe='')}") as client:
            client.create("q")
            client.send("q", "kept")
            assert [message.body for message in client.pop("q")] == ["kept"]
        (reload,) = values(unit, "ExecReload")
        assert shlex.split(reload)[1:] == ["-HUP", "$MAINPID"]
        os.kill(child.pid, signal.SIGHUP)
        heard.hear_until(lambda said: "RELOADING=1" in said)
        heard.hear_until(lambda said: "READY=1" in said)
        assert child.terminate() == 0
        heard.hear_until(lambda said: "STOPPING=1" in said)
    assert not list(runtime.iterdir())
