"""The manifests: valid for Kubernetes, in agreement with each other, with the broker's options and with its metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from celery.bin.celery import celery as celery_command

from kombu_opendata import url as urls
from kombu_opendata.broker.endpoints.endpoints import ListedQueue
from kombu_opendata.broker.metrics.metric_catalogue import ALL, PREFIX
from kombu_opendata.configuration.addresses import WILDCARDS

from ...support.command_lines import parse
from ...support.processes import Children
from ...support.scrape import fetch
from ...support.served import ServedBroker
from .conftest import DEPLOY, Configured

FOLDER = DEPLOY / "kubernetes"
#: of its own kind, which Kubernetes does not know
KEDA = "ScaledObject"


def _documents() -> Iterator[dict[str, Any]]:
    for file in sorted(FOLDER.glob("*.yaml")):
        if file.name != "kustomization.yaml":
            yield from yaml.safe_load_all(file.read_text())


MANIFESTS = {(one["kind"], one["metadata"]["name"]): one for one in _documents()}
BROKER = MANIFESTS["StatefulSet", "opendata-queue"]
WORKER = MANIFESTS["Deployment", "celery-worker"]
WEB_POD = MANIFESTS["Deployment", "opendata-queue-web"]["spec"]["template"]["spec"]
BROKER_POD, WORKER_POD = (one["spec"]["template"]["spec"] for one in (BROKER, WORKER))
BROKER_CONTAINER, WORKER_CONTAINER = (pod["containers"][0] for pod in (BROKER_POD, WORKER_POD))


def variables(container: dict[str, Any]) -> dict[str, str]:
    """The environment of a container of the first pod."""
    known = {"metadata.name": "opendata-queue-0", "metadata.namespace": "opendata-queue"}
    found: dict[str, str] = {}
    for one in container["env"]:
        value = one["value"] if "value" in one else known[one["valueFrom"]["fieldRef"]["fieldPath"]]
        found[one["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], value)
    return found


@pytest.mark.parametrize("name", [name for name in MANIFESTS if name[0] != KEDA], ids="/".join)
def test_kubernetes_knows_each_field(name: tuple[str, str]) -> None:
    import kubernetes_validate  # for seconds, which each process that collects the tests would take

    kubernetes_validate.validate(MANIFESTS[name], kubernetes_validate.latest_version(), strict=True)


def test_the_kustomization_has_every_file() -> None:
    text = (FOLDER / "kustomization.yaml").read_text()
    found = yaml.safe_load(text)
    optional = re.findall(r"(?m)^  # - (\S+\.yaml)", text)
    files = {file.name for file in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert {*found["resources"], *optional} == files
    assert found["configMapGenerator"][0]["name"] == _volume(BROKER_POD, "config")["configMap"]["name"]
    assert found["namespace"] == MANIFESTS["Namespace", "opendata-queue"]["metadata"]["name"]


@pytest.mark.parametrize("pod", [BROKER_POD, WORKER_POD, WEB_POD], ids=["broker", "worker", "web"])
def test_a_pod_fulfils_the_restricted_standard(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert not pod["automountServiceAccountToken"]
    assert not pod["enableServiceLinks"], "variables of services could be taken for options"
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    for volume in pod["volumes"]:
        if "secret" in volume:
            assert not volume["secret"]["defaultMode"] & 0o007, "the broker and its clients refuse such files"
            assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


def test_the_image_is_run_as_its_own_user() -> None:
    user = re.findall(r"(?m)^USER (\d+):(\d+)$", (DEPLOY / "docker/Dockerfile").read_text())
    assert user == [(str(BROKER_POD["securityContext"]["runAsUser"]), str(BROKER_POD["securityContext"]["runAsGroup"]))]


# ------------------------------------------------------------------ options
def test_the_options_are_real_ones_and_the_files_are_mounted(configured: Configured) -> None:
    context = parse(BROKER_CONTAINER["args"])
    mounts = {mount["mountPath"]: mount["name"] for mount in BROKER_CONTAINER["volumeMounts"]}
    assert mounts[str(context.params["config"].parent)] == "config"
    options = configured(FOLDER / context.params["config"].name, variables(BROKER_CONTAINER))
    for file in (options.users, options.tls_cert, options.tls_key):
        assert file is not None
        assert "secret" in _volume(BROKER_POD, mounts[str(file.parent)])
    assert options.standby
    ports = {port["name"]: port["containerPort"] for port in BROKER_CONTAINER["ports"]}
    assert options.metrics is not None
    assert ports == {"queue": options.listen[0].port, "metrics": options.metrics.port}
    assert {options.listen[0].host, options.metrics.host} <= WILDCARDS


def test_clients_know_both_brokers_by_the_names_that_these_advertise(configured: Configured) -> None:
    url = variables(WORKER_CONTAINER)["CELERY_BROKER_URL"]
    options = configured(FOLDER / "broker.toml", variables(BROKER_CONTAINER))
    advertised = {options.advertise[0].authority.replace("-0.", f"-{n}.") for n in range(BROKER["spec"]["replicas"])}
    assert {f"{one.host}:{one.port}" for one in _addresses(url)} == advertised
    assert all(one.tls and one.user and not one.secret for one in _addresses(url))
    service = MANIFESTS["Service", BROKER["spec"]["serviceName"]]
    assert service["spec"]["clusterIP"] == "None", "a name for each pod"
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"].items() <= BROKER["spec"]["template"]["metadata"]["labels"].items()
    celery_command.make_context("celery", WORKER_CONTAINER["command"][1:])


def _addresses(url: str) -> list[urls.Address]:
    hosts = url.partition("://")[2].rpartition("@")[2].split(",")
    login = url.rpartition("@")[0]
    urls.parse(url)  # the list as a whole
    return [urls.parse(f"{login}@{host}") for host in hosts]


def _volume(pod: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (volume for volume in pod["volumes"] if volume["name"] == name)
    return dict(found)


# ------------------------------------------------------------------ running
def test_the_probes_ask_what_a_broker_answers_while_it_stands_by(store_folder: Path, started: Children) -> None:
    options = ("--store", f"file://{store_folder}/store", "--listen", "tcp:127.0.0.1:0", "--standby", "--metrics", "0")
    active = ServedBroker(store_folder, *options)
    started.add(active)
    probes = {BROKER_CONTAINER[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    for path in probes:
        with fetch(active.report["metrics_port"], path) as answer:
            assert answer.status == 200
    assert probes == {"/healthz"}, "/readyz would keep a rolling update waiting for the standby"
    assert active.terminate() == 0


def test_one_broker_at_a_time_may_be_disrupted() -> None:
    budget = MANIFESTS["PodDisruptionBudget", "opendata-queue"]["spec"]
    assert BROKER["spec"]["replicas"] - budget["maxUnavailable"] >= 1
    assert budget["selector"] == BROKER["spec"]["selector"]
    assert BROKER["spec"]["minReadySeconds"] > 0, "the next pod is replaced when this one can take over"
    spread = BROKER_POD["topologySpreadConstraints"][0]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "DoNotSchedule")


def test_the_network_policy_lets_in_who_must_get_in() -> None:
    policy = MANIFESTS["NetworkPolicy", "opendata-queue"]["spec"]
    labels = BROKER["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert {*policy["policyTypes"]} == {"Ingress", "Egress"}
    queue, metrics = policy["ingress"]
    assert [port["port"] for port in (*queue["ports"], *metrics["ports"])] == ["queue", "metrics"]
    brokers, clients = queue["from"]
    assert brokers["podSelector"]["matchLabels"].items() <= labels.items()
    worker = WORKER["spec"]["template"]["metadata"]["labels"]
    assert clients["podSelector"]["matchLabels"].items() <= worker.items()
    assert all(one.get("podSelector") or one.get("namespaceSelector") for one in (*queue["from"], *metrics["from"]))
    reached = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert reached == {5677, 53, 443}


# ------------------------------------------------------------------ KEDA
def test_the_workers_are_scaled_by_metrics_that_exist() -> None:
    scaled = MANIFESTS[KEDA, "celery-worker"]
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    spec = scaled["spec"]
    assert spec["scaleTargetRef"]["name"] == WORKER["metadata"]["name"]
    assert spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
    (trigger,) = spec["triggers"]
    assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA takes texts only"
    asked = re.findall(r"(\w+)\{([^}]*)\}", trigger["metadata"]["query"])
    known = {f"{PREFIX}{metric.name}": metric.labels for metric in ALL}
    assert asked
    for name, labels in asked:
        assert {label.partition("=")[0] for label in labels.split(",")} == {*known[name]}
    queue = WORKER_CONTAINER["command"][WORKER_CONTAINER["command"].index("--queues") + 1]
    assert all(f'queue="{queue}"' in labels for _name, labels in asked)


def test_the_other_trigger_reads_what_a_broker_lists(store_folder: Path, started: Children) -> None:
    text = (FOLDER / "keda.yaml").read_text()
    (trigger,) = yaml.safe_load(re.sub(r"(?m)^    # ?", "", text[text.index("    # - type: metrics-api") :]))
    queues, number, field = trigger["metadata"]["valueLocation"].split(".")
    assert (queues, number) == ("queues", "0")
    assert field in ListedQueue.__struct_fields__
    options = ("--store", f"file://{store_folder}/store", "--listen", "tcp:127.0.0.1:0", "--metrics", "0")
    broker = ServedBroker(store_folder, *options)
    started.add(broker)
    path = re.sub(r"^http://[^/]+", "", trigger["metadata"]["url"])
    with fetch(broker.report["metrics_port"], path) as answer:
        assert answer.status == 200
    assert broker.terminate() == 0
