"""Options from the command line, the environment and a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kombu_opendata.broker.process.memory_watch import memory_limit
from kombu_opendata.broker.process.start_settings import broker_settings
from kombu_opendata.broker.wire.broker_settings import BrokerSettings
from kombu_opendata.configuration.addresses import Listen
from kombu_opendata.configuration.options import BrokerOptions, specs
from kombu_opendata.configuration.sources import configuration
from kombu_opendata.errors import InvalidConfiguration

NEEDED = {"store": "memory://x", "listen": ("unix:/run/q.sock",)}
LEAST = BrokerOptions(store="memory://x", listen=(Listen(path="/run/q.sock"),))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "broker.toml"


def test_the_command_line_comes_before_the_environment_and_that_before_the_file(file: Path) -> None:
    file.write_text('max-connections = 3\nheartbeat = "3m"\nmetrics-max-queues = 3\ninstance = ["c"]')
    environment = {
        "OPENDATA_QUEUE_MAX_CONNECTIONS": "2",
        "OPENDATA_QUEUE_HEARTBEAT": "2m",
        "OPENDATA_QUEUE_INSTANCE": "a, b",
    }
    found = configuration({**NEEDED, "max_connections": "1"}, environment, file)
    options = found.options()
    assert (options.max_connections, options.heartbeat_seconds, options.metrics_max_queues) == (1, 120, 3)
    assert options.instance == ("a", "b")
    assert options.history_days == 14
    assert found.sources["max_connections"] == "command line"
    assert found.sources["heartbeat_seconds"] == "OPENDATA_QUEUE_HEARTBEAT"
    assert found.sources["metrics_max_queues"] == str(file)
    assert "history_days" not in found.sources


def test_the_variable_names_the_file_unless_the_option_does(file: Path, tmp_path: Path) -> None:
    file.write_text("max-connections = 3")
    environment = {"OPENDATA_QUEUE_CONFIG": str(file)}
    assert configuration(NEEDED, environment, None).options().max_connections == 3
    (tmp_path / "other.toml").write_text("")
    assert configuration(NEEDED, environment, tmp_path / "other.toml").options().max_connections == 10_000


def test_every_option_can_be_given_in_every_way(file: Path) -> None:
    for spec in specs():
        if spec.internal:
            found = configuration(NEEDED, {spec.variable: "1"}, None).options()
            assert getattr(found, spec.field) == spec.default
            file.write_text(f"{spec.key} = 1")
            with pytest.raises(InvalidConfiguration, match="there is no option"):
                configuration(NEEDED, {}, file).options()
            continue
        assert spec.help
        assert not re.search("_(PORT|HOST|ADDR|PROTO|TCP)$", spec.variable), "Kubernetes sets such for services"
        assert "_" not in spec.key
        assert spec.flag == f"--{spec.key}"
        assert spec.variable == "OPENDATA_QUEUE_" + spec.key.upper().replace("-", "_")


def test_all_faults_are_told_each_with_its_source(file: Path) -> None:
    file.write_text('max-conections = 3\nlog_level = "INFO"\nhistory-days = -1\nretention-bytes = "much"\nlisten = []')
    found = configuration({}, {"OPENDATA_QUEUE_SLOW_COMMIT": "0", "OPENDATA_QUEUE_METRICS": ""}, file)
    assert found.errors == [
        "OPENDATA_QUEUE_SLOW_COMMIT: '0' is out of range: give more than 0",
        f"{file}: there is no option 'max-conections': do you mean max-connections?",
        f"{file}: there is no option 'log_level': do you mean log-level?",
        f"{file}: history-days: -1 is out of range: give 0 to 36,500",
        f"{file}: retention-bytes: 'much' is not a size: write a number of bytes, or 500M, 20G, 1T",
        f"{file}: listen: the list is empty: give at least one",
        f"--store is missing: give it, or OPENDATA_QUEUE_STORE, or store in {file}",
    ]
    with pytest.raises(InvalidConfiguration, match="7 errors in the configuration") as refused:
        found.options()
    assert refused.value.faults == found.errors


def test_a_value_that_another_source_overrides_is_checked_all_the_same(file: Path) -> None:
    file.write_text("max-connections = 0")
    found = configuration({**NEEDED, "max_connections": "5"}, {}, file)
    assert found.errors == [f"{file}: max-connections: 0 is out of range: give 1 to 1,000,000"]
    assert found.sources["max_connections"] == "command line"


def test_paths_of_a_file_begin_at_its_folder(file: Path) -> None:
    file.write_text('store = "queue"\nlisten = ["unix:q.sock", "tcp:"]\nusers = "users.toml"\ntls-cert = "/etc/c.pem"')
    options = configuration({}, {}, file).options()
    assert options.folder == file.parent / "queue"
    assert options.listen[0].path == str(file.parent / "q.sock")
    assert (options.users, options.tls_cert) == (file.parent / "users.toml", Path("/etc/c.pem"))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"store = ", "is not valid TOML"),
        (b"# a\n\xff", "is not UTF-8, in line 2"),
        ("store = 'q'".encode("utf-16"), "is not UTF-8, in line 1: save it with that encoding"),
        (b"a = " + b"[" * 20_000, "is not valid TOML"),
        (b"# " + b"x" * (1 << 20), "is larger than 1 MiB"),
        (b"[store]\na = 1", "store: {'a': 1} is not a text"),
        (None, "can't be read: No such file or directory"),
    ],
)
def test_a_file_that_can_not_be_used(file: Path, data: bytes | None, text: str) -> None:
    if data is not None:
        file.write_bytes(data)
    (fault,) = configuration(NEEDED, {}, file).errors
    assert str(file) in fault
    assert text in fault


def test_a_byte_order_mark_is_no_part_of_a_file(file: Path) -> None:
    file.write_text("max-connections = 7", encoding="utf-8-sig")
    assert configuration(NEEDED, {}, file).options().max_connections == 7


def test_what_an_unreadable_file_may_have_is_not_missing(file: Path) -> None:
    (fault,) = configuration({}, {}, file).errors
    assert "can't be read" in fault


def test_a_misspelt_variable_is_a_warning_and_those_of_kubernetes_are_none() -> None:
    environment = dict.fromkeys(
        (
            "OPENDATA_QUEUE_MAX_CONECTIONS", "OPENDATA_QUEUE_PORT", "OPENDATA_QUEUE_SERVICE_HOST",
            "OPENDATA_QUEUE_PORT_5677_TCP_ADDR", "OPENDATA_QUEUE_URL", "OPENDATA_QUEUE_CA",
        ),
        "1",
    )  # fmt: skip
    found = configuration(NEEDED, environment, None)
    assert found.options() == LEAST
    assert found.warnings == [
        "the variable OPENDATA_QUEUE_MAX_CONECTIONS is not an option: do you mean OPENDATA_QUEUE_MAX_CONNECTIONS?"
    ]


def test_the_defaults_are_those_of_a_broker_in_memory() -> None:
    """Whatever makes a broker without options: the definition of the options repeats no default by mistake."""
    limit = memory_limit(LEAST.memory_limit)
    assert broker_settings(LEAST) == BrokerSettings("memory://x", memory_limit_bytes=limit)
