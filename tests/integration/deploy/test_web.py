"""The web UI in deploy/: its command lines are run beside a broker with users and TLS, and probed as they say."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from kombu_opendata import url as urls

from ...support.certificates import Authority
from ...support.command_lines import parse
from ...support.processes import Child, Children, wait_until
from ...support.served import COMMAND, ServedBroker
from ...support.users import user_table, write_users
from .conftest import DEPLOY
from .test_systemd import CONFINED, values

UNIT = DEPLOY / "systemd/opendata-queue-web.service"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())["services"]["web"]
MANIFESTS = {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes/web.yaml").read_text())}
POD = MANIFESTS["Deployment"]["spec"]["template"]
CONTAINER = POD["spec"]["containers"][0]


class Deployed(NamedTuple):
    """A command line, the address that its probe asks, and what runs it."""

    words: list[str]
    probe: str
    wrapper: tuple[str, ...] = ()


def _deployed() -> dict[str, Deployed]:
    (unit,) = values(UNIT, "ExecStart")
    (asked,) = re.findall(r"urlopen\('([^']+)'", COMPOSE["healthcheck"]["test"][-1])
    probe = CONTAINER["readinessProbe"]["httpGet"]
    return {
        "systemd": Deployed(shlex.split(unit)[1:], "", (sys.executable, "-c", CONFINED)),
        "compose": Deployed(COMPOSE["command"], asked.partition(":8080")[2]),
        "kubernetes": Deployed(CONTAINER["args"], probe["path"]),
    }


DEPLOYED = _deployed()


@pytest.mark.parametrize("where", DEPLOYED)
def test_it_serves_logins_and_nothing_without_one(where: str, store_folder: Path, started: Children) -> None:
    authority = Authority(store_folder)
    issued = authority.issue("cert", "127.0.0.1")
    users = write_users(store_folder / "users.toml", user_table("ops", "s3cret", {"*": {}}, roles=("admin",)))
    place = ("--store", f"file://{store_folder}/store", "--listen", "tcp:127.0.0.1:0", "--users", str(users))
    broker = ServedBroker(store_folder, *place, "--tls-cert", str(issued.chain), "--tls-key", str(issued.key))
    started.add(broker)
    url = f"opendatas://127.0.0.1:{broker.port}"
    line = " ".join(map(shlex.quote, DEPLOYED[where].words))
    line = re.sub(r"opendatas?://[^\s']+", url, line).replace("0.0.0.0:8080", "127.0.0.1:0")
    line = line.replace("0.0.0.0:8443", "127.0.0.1:0").replace("%H", "queues.example.org")
    line = re.sub(r"\S+/(?:cert\.pem|tls\.crt)", lambda found: _option(found[0], issued.chain), line)
    line = re.sub(r"\S+/(?:key\.pem|tls\.key)", lambda found: _option(found[0], issued.key), line)
    command = [*DEPLOYED[where].wrapper, str(COMMAND), *shlex.split(line)]
    environment = {"OPENDATA_QUEUE_CA": str(authority.path)}
    web = Child(command, store_folder / "web.log", cwd=Path("/"), env=environment)
    started.add(web)
    announced = r"https?://127\.0\.0\.1:\d+/"
    wait_until(lambda: web.ended or re.search(announced, web.log.read_text()) is not None, 60, web.log.read_text)
    web.check()
    address = re.findall(announced, web.log.read_text())[0]
    with httpx.Client(base_url=address, verify=False, timeout=60, headers={"Host": "10.1.2.3:8443"}) as probe:
        assert (probe.get("healthz").status_code, probe.get("healthz").text) == (200, "ok\n")
        assert where != "kubernetes" or probe.get("").status_code == 421, "only under its own name"
    with httpx.Client(base_url=address, verify=False, timeout=60) as visitor:
        assert visitor.get("").headers["location"].startswith("/login")
        assert visitor.get("api/v1/queues").status_code == 401
        assert visitor.get("api/v1/queues", auth=("ops", "s3cret")).status_code == 200
    assert broker.terminate() == 0
    with httpx.Client(base_url=address, verify=False, timeout=60) as probe:
        assert probe.get("healthz").status_code == 200, "a restart of the web UI brings no broker back"
    assert web.terminate() == 0


def _option(text: str, file: Path) -> str:
    return f"{text.partition('=')[0]}={file}" if text.startswith("--") else str(file)


def test_it_has_no_secret_of_the_broker(tmp_path: Path) -> None:
    for name in ("cert.pem", "key.pem", "tls.crt", "tls.key"):
        (tmp_path / name).touch()
    for words, _probe, _wrapper in DEPLOYED.values():
        parse([re.sub(r"(%d|/etc/opendata-queue/tls)/", f"{tmp_path}/", word) for word in words])
        (address,) = re.findall(r"\bopendatas?://\S+", " ".join(words))
        assert not urls.parse(address.replace("%H", "host")).user, "visitors log in as themselves"
    assert "secrets" not in COMPOSE
    assert "volumes" not in COMPOSE
    secrets = [one["secret"]["secretName"] for one in POD["spec"]["volumes"] if "secret" in one]
    assert secrets == ["opendata-queue-web-tls"]
    text = UNIT.read_text()
    assert "DynamicUser=true" in text
    assert "StateDirectory" not in text


def test_kubernetes_leads_to_it_by_tls_and_lets_it_reach_the_brokers() -> None:
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert f"--listen=0.0.0.0:{ports['https']}" in CONTAINER["args"]
    assert {CONTAINER[f"{name}Probe"]["httpGet"]["scheme"] for name in ("readiness", "liveness")} == {"HTTPS"}
    service, ingress, policy = (MANIFESTS[kind]["spec"] for kind in ("Service", "Ingress", "NetworkPolicy"))
    labels = POD["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert service["ports"][0]["targetPort"] in ports
    (rule,) = ingress["rules"]
    assert f"--allowed-host={rule['host']}" in CONTAINER["args"]
    assert ingress["tls"][0]["hosts"] == [rule["host"]]
    assert rule["http"]["paths"][0]["backend"]["service"]["name"] == MANIFESTS["Service"]["metadata"]["name"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    (entry,) = policy["ingress"]
    assert (entry["ports"][0]["port"], len(entry["from"])) == ("https", 1)
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {5677, 53}
    network = yaml.safe_load((DEPLOY / "kubernetes/network-policy.yaml").read_text())
    assert network["spec"]["ingress"][0]["from"][1]["podSelector"]["matchLabels"].items() <= labels.items()
    assert MANIFESTS["Deployment"]["spec"]["replicas"] == 1, "logins are in its memory"


def test_compose_publishes_it_on_loopback_only() -> None:
    (published,) = COMPOSE["ports"]
    address, _host_port, container_port = published.split(":")
    assert address == "127.0.0.1"
    assert COMPOSE["command"][-1].endswith(f":{container_port}")
