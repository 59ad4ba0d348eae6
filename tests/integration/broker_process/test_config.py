"""``config check`` and ``config show``, and brokers that are started with a file and variables."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner, Result

from kombu_opendata.cli.root import main
from kombu_opendata.configuration.kinds import NumberKind
from kombu_opendata.configuration.options import public_specs
from kombu_opendata.configuration.sources import configuration, read_table
from tests.support.broker import EmbeddedBroker
from tests.support.kombu_client import connected, declare, send, take_bodies
from tests.support.scrape import scrape
from tests.support.served import ServedBroker

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "broker.toml"


def run(*words: str, **env: str) -> Result:
    return CliRunner().invoke(main, words, env=env)


def check(*words: str, **env: str) -> list[str]:
    """The faults."""
    done = run("config", "check", *words, "--json", **env)
    told = json.loads(done.stdout)
    assert done.exit_code == (0 if told["ok"] else 1), done.stderr
    return list(told["errors"])


def test_the_example_of_the_page_is_understood(file: Path) -> None:
    example = PAGE.read_text().split("```toml\n")[1].split("```")[0]
    file.write_text(example)
    found = configuration({}, {}, file)
    assert found.errors == []
    assert len(found.values) == len(read_table(file)) > 10


def test_a_configuration_that_is_good(file: Path) -> None:
    file.write_text('store = "queue"\nlisten = ["unix:q.sock", "tcp:127.0.0.1:0"]')
    done = run("config", "check", str(file))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "the configuration is good\n", "")
    assert sorted(path.name for path in file.parent.iterdir()) == ["broker.toml"]


def test_all_faults_are_told_at_once(file: Path) -> None:
    file.write_text('store = "queue"\nlisten = ["unix:/nowhere/q.sock"]\nmax-conections = 3\ninstance = ["a b"]')
    faults = check("--config", str(file), "--heartbeat", "soon", OPENDATA_QUEUE_SLOW_COMMIT="0")
    assert faults == [
        "--heartbeat: 'soon' is not a time: write a number of seconds, or 500ms, 30s, 2h, 7d, 1h30m",
        "OPENDATA_QUEUE_SLOW_COMMIT: '0' is out of range: give more than 0",
        f"{file}: there is no option 'max-conections': do you mean max-connections?",
        f"{file}: instance: 'a b' is not a name",
        "unix:/nowhere/q.sock: there is no folder /nowhere: make it, or choose another path",
    ]
    done = run("config", "check", str(file), "--heartbeat", "soon")
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: 4 errors in the configuration:\n  --heartbeat: ")


def test_what_a_start_would_find(file: Path, tmp_path: Path) -> None:
    issued, other = (trustme.CA().issue_cert("localhost") for _ in range(2))
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    other.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "key.pem").chmod(0o644)
    (tmp_path / "users.toml").write_text("[users.app]\n")
    (tmp_path / "users.toml").chmod(0o644)
    (tmp_path / "file").touch()
    file.write_text(
        'store = "file/queue"\nlisten = ["tcp:203.0.113.9:5677", "tcp:0.0.0.0:1", "tcp:0.0.0.0:1", "unix:file"]\n'
        'tls-cert = "cert.pem"\ntls-key = "key.pem"\nusers = "users.toml"\ninstance = ["a.journal"]'
    )

    def told(*faults: str) -> None:
        found = check(str(file))
        assert all(any(fault in one for one in found) for fault in faults), found

    told(
        "is open to every user of this machine",
        "can be read or written by every user of this machine",
        "0.0.0.0:1 is given twice",
        "203.0.113.9 is not an address of this machine",
        "the path exists and is not a socket",
        "is a file",
        "instance name 'a.journal'",
    )
    (tmp_path / "key.pem").chmod(0o600)
    told("key.pem does not belong to the certificate in")
    old = trustme.CA().issue_cert("localhost", not_after=datetime(2020, 1, 1, tzinfo=UTC))
    old.private_key_and_cert_chain_pem.write_to_path(tmp_path / "key.pem")
    file.write_text('store = "queue"\nlisten = ["tcp:"]\ntls-cert = "key.pem"')
    told("key.pem expired on 2020-01-01")


@pytest.mark.parametrize(
    ("store", "fault"),
    [
        ("nonsense://x", "is no object-store URL"),
        ("s3://", "is no object-store URL"),
        ("/", "names no folder"),
        ("s3://bucket/x?region=eu", "'s3://bucket/x?region=**' has settings after '?' or '#': set the environment"),
    ],
)
def test_stores_that_can_not_be(store: str, fault: str) -> None:
    assert any(fault in one for one in check("--store", store, "--listen", "tcp:"))


def test_a_pair_that_nobody_could_use() -> None:
    words = ("--store", "s3://bucket/x", "--listen", "tcp:", "--standby")
    for place in ("0.0.0.0:5677", "[::]:5677", "a.example.org:0"):
        (fault,) = check(*words, "--advertise", place)
        assert fault.startswith(f"--advertise {place}: clients can't connect to that")
    (fault,) = check(*words, "--renew-every", "2h")
    assert fault == "--renew-every: '2h' is out of range: give 0.2 to 60"


def test_show_tells_where_each_value_comes_from(file: Path) -> None:
    file.write_text('store = "s3://key:secret@bucket/x"\nlisten = ["tcp:127.0.0.1:0"]\nretention-bytes = "20G"')
    words = ("config", "show", str(file), "--max-connections", "5")
    done = run(*words, "--json", OPENDATA_QUEUE_INSTANCE="a,b")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["max-connections"] == {"value": 5, "source": "command line"}
    assert told["instance"] == {"value": ["a", "b"], "source": "OPENDATA_QUEUE_INSTANCE"}
    assert told["retention-bytes"] == {"value": 20 << 30, "source": str(file)}
    assert told["log-retention"] == {"value": "settled", "source": "default"}
    assert told["users"] == {"value": None, "source": "default"}
    assert "secret" not in done.stdout

    shown = run(*words, OPENDATA_QUEUE_INSTANCE="a,b").stdout
    file.write_text(shown)
    again = json.loads(run("config", "show", str(file), "--json").stdout)
    assert {key: one["value"] for key, one in again.items()} == {key: one["value"] for key, one in told.items()}


def test_show_refuses_what_is_wrong(file: Path) -> None:
    done = run("config", "show", str(file))
    assert done.exit_code == 2
    assert f"the config file {file} can't be read: No such file or directory" in done.stderr


def test_a_broker_with_a_file_and_a_variable(
    serve: Callable[..., ServedBroker], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENDATA_QUEUE_LOG_FORMAT", "json")
    file.write_text('max-connections = 7\nheartbeat = "3s"\nlog-level = "DEBUG"\nlog-format = "text"')
    served = serve("--config", str(file), "--max-connections", "8")
    start = json.loads(served.log.read_text().splitlines()[0])
    assert "max-connections=8, heartbeat=3, log-format=json, log-level=DEBUG" in start["message"].replace("  ", " ")


def test_a_broker_that_is_told_nonsense_does_not_start(file: Path, store_folder: Path) -> None:
    file.write_text("no-such = 1")
    command = ["broker", "--config", str(file), "--listen", "tcp:127.0.0.1:0"]
    done = run(*command, OPENDATA_QUEUE_STORE=str(store_folder), OPENDATA_QUEUE_HEARTBEAT="-1")
    assert done.exit_code == 2
    assert "2 errors in the configuration" in done.stderr
    assert not (store_folder / "default").exists()


def test_a_misspelt_variable_is_in_the_log(serve: Callable[..., ServedBroker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENDATA_QUEUE_MAX_CONECTIONS", "1")
    served = serve()
    assert "do you mean OPENDATA_QUEUE_MAX_CONNECTIONS?" in served.log.read_text()


def test_a_folders_broker_reads_neither_file_nor_variables(
    broker_url: str, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    file.write_text("this is no configuration")
    stray: dict[str, Any] = {"CONFIG": str(file), "LISTEN": "tcp:", "LOG_FORMAT": "json", "MAX_CONNECTIONS": "nonsense"}
    for name, value in stray.items():
        monkeypatch.setenv(f"OPENDATA_QUEUE_{name}", value)
    with connected(broker_url):
        assert "listening on unix:" in broker.log.read_text()
        assert "tcp:" not in broker.log.read_text()


def test_help_is_light() -> None:
    """No broker and no store is loaded to print the options."""
    program = (
        "import sys; from kombu_opendata.cli.root import main; main(['broker', '--help'], standalone_mode=False);"
        "heavy = {'slatedb', 'kombu_opendata.broker', 'kombu_opendata.storage'};"
        "print(*sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "--max-connections" in done.stdout
    assert done.stderr == "\n"


# ---------------------------------------------------------------------- out of range
BOUNDED = {spec: spec.kind for spec in public_specs() if isinstance(spec.kind, NumberKind)}


def test_every_option_out_of_range_is_refused(store_folder: Path) -> None:
    """All at once, below and above what is allowed."""
    given: list[str] = []
    for spec, kind in BOUNDED.items():
        lowest = kind.above if kind.above > -math.inf else kind.low - 1
        for value in (lowest, 2 * (kind.most if kind.high is None else kind.high)):
            given.append(f"{spec.flag}={value:.0f}")
    for values in (given[::2], given[1::2]):
        done = run("broker", "--store", str(store_folder), "--listen", "tcp:127.0.0.1:0", *values)
        assert done.exit_code == 2
        faults = done.stderr.splitlines()[1:]
        assert len(faults) == len(BOUNDED) > 15
        assert all("is out of range: give " in fault or "is not a size: " in fault for fault in faults), done.stderr
    assert list(store_folder.iterdir()) == []


@pytest.mark.parametrize("end", ["lowest", "highest"])
def test_a_broker_starts_with_whatever_is_allowed(serve: Callable[..., ServedBroker], end: str) -> None:
    values = []
    for spec, kind in BOUNDED.items():
        lowest = max(kind.low, kind.above + 1e-6 if kind.above > -math.inf else 0)
        value = lowest if end == "lowest" else kind.most if kind.high is None else kind.high
        if spec.key != "idle-exit":
            values.append(f"{spec.flag}={value:.6f}".rstrip("0").rstrip("."))
    broker = serve("--listen", "tcp:127.0.0.1:0", "--metrics", "0", *values)
    with connected(f"opendata://127.0.0.1:{broker.port}") as connection, connection.channel() as channel:
        declare(channel, "q")
        send(channel, "q", "x")
        assert take_bodies(channel, "q") == ["x"]
    scrape(broker.report["metrics_port"])
    assert broker.terminate() == 0
