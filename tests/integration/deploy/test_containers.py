"""The Dockerfile and the compose file: linted, checked against the specification, and followed without an engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from celery.bin.celery import celery as celery_command

from kombu_opendata import url as urls

from ...support.certificates import write_private
from ...support.command_lines import parse
from ...support.other_users import Account
from ...support.processes import Child, Children, wait_until
from ...support.scrape import fetch
from ...support.served import COMMAND, ServedBroker
from ...support.unprivileged import needs_root
from ...support.users import user_table, write_users
from .conftest import Configured

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
IMAGE_USER = 10_001


def run(*command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **more)


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Instructions and their arguments, lines joined; comments left out."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


@pytest.fixture
def dockerfile(deploy: Path) -> Path:
    return deploy / "docker/Dockerfile"


@pytest.fixture
def compose(deploy: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((deploy / "docker/compose.yaml").read_text())
    return found


# ------------------------------------------------------------------ the image
@pytest.mark.skipif(sys.platform != "linux", reason="hadolint is installed on Linux only")
def test_the_dockerfile_has_no_lint(dockerfile: Path) -> None:
    done = run(str(BIN / "hadolint"), "--failure-threshold", "style", str(dockerfile))
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_runs_the_broker_as_nobody_special(dockerfile: Path) -> None:
    found = instructions(dockerfile)
    stages = [index for index, (word, _) in enumerate(found) if word == "FROM"]
    assert len(stages) == 2, "what only the build needs is not in the image"
    image = dict(found[stages[1] :])
    assert image["USER"] == f"{IMAGE_USER}:{IMAGE_USER}"
    assert not {"RUN apt-get", "ADD"} & {f"{word} {rest}"[:11] for word, rest in found}
    assert json.loads(image["ENTRYPOINT"]) == ["opendata-queue"]
    assert parse(json.loads(image["CMD"])).command.name == "broker"
    options, _, check = image["HEALTHCHECK"].partition("CMD ")
    verb = parse(json.loads(check)[1:])
    limit = re.search(r"--timeout=(\d+)s", options)
    assert limit is not None
    assert verb.command.name == "ping"
    assert verb.params["timeout"] < int(limit[1])
    assert verb.params["allow_standby"], "a standby is healthy"
    assert urls.parse(re.findall(r"OPENDATA_QUEUE_URL=(\S+)", image["ENV"])[0]).port == urls.DEFAULT_PORT


def test_the_build_sees_what_it_copies_and_nothing_else(dockerfile: Path) -> None:
    seen = dockerfile.with_name("Dockerfile.dockerignore").read_text().split()
    assert seen[0] == "*"
    copied = [rest.split()[:-1] for word, rest in instructions(dockerfile) if word == "COPY" and "--from" not in rest]
    assert {f"!{source.removeprefix('./')}" for sources in copied for source in sources} == {*seen[1:-1]}
    assert all((ROOT / name[1:]).exists() for name in seen[1:-1])


# ------------------------------------------------------------------ compose
def test_the_compose_file_is_one(deploy: Path) -> None:
    words = ("--builtin-schema", "vendor.compose-spec", str(deploy / "docker/compose.yaml"))
    done = run(str(BIN / "check-jsonschema"), *words)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_services_are_confined(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        published = service.get("ports", [])
        assert all(one.startswith("127.0.0.1:") for one in published), "without TLS nothing is published on a network"
        assert not {"user", "privileged"} & service.keys()


def test_everything_that_compose_names_is_there(deploy: Path, compose: dict[str, Any], configured: Configured) -> None:
    folder = deploy / "docker"
    broker, worker = compose["services"]["broker"], compose["services"]["worker"]
    assert (folder / broker["build"]["context"] / broker["build"]["dockerfile"]).samefile(folder / "Dockerfile")
    for service in (broker, worker):
        assert {*service["secrets"]} <= compose["secrets"].keys()
        assert service["environment"]["OPENDATA_SECRET_FILE"].removeprefix("/run/secrets/") in service["secrets"]
        assert {*service["networks"]} <= compose["networks"].keys()
    assert broker["configs"][0]["target"] == "/etc/opendata-queue/broker.toml"
    options = configured(folder / compose["configs"]["broker.toml"]["file"])
    assert str(options.users) == "/run/secrets/users.toml"
    volume, _, place = broker["volumes"][0].partition(":")
    assert volume in compose["volumes"]
    assert options.folder is not None
    assert options.folder.is_relative_to(place)
    health = urls.parse(broker["environment"]["OPENDATA_QUEUE_URL"])
    for name in ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"):
        client = urls.parse(worker["environment"][name])
        assert (client.host, client.port) == ("broker", options.listen[0].port)
        assert not client.secret
    assert (health.user, health.secret, health.port) == ("health", "", options.listen[0].port)
    celery_command.make_context("celery", list(worker["command"]))


@pytest.mark.slow
def test_the_worker_of_the_compose_file_works(
    deploy: Path, compose: dict[str, Any], store_folder: Path, started: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the users that the page makes, and with nothing but what the compose file says."""
    users = store_folder / "users.toml"
    for words in (("add", "celery"), ("permit", "celery", "--celery")):
        done = run(str(COMMAND), "user", *words, "--users", str(users), input="s3cret\n")
        assert done.returncode == 0, done.stderr
    secret = write_private(store_folder / "celery", b"s3cret\n")
    config = store_folder / "broker.toml"
    text = (deploy / "docker/broker.toml").read_text()
    config.write_text(text.replace("/run/secrets", str(store_folder)).replace(":9464", ":0"))
    place = ("--store", f"file://{store_folder}/store", "--listen", "tcp:127.0.0.1:0")
    broker = ServedBroker(store_folder, "--config", str(config), *place)
    started.add(broker)
    worker = compose["services"]["worker"]
    for name in ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"):
        monkeypatch.setenv(name, worker["environment"][name].replace("broker:5677", f"127.0.0.1:{broker.port}"))
    monkeypatch.setenv("OPENDATA_SECRET_FILE", str(secret))
    command = [str(BIN / "celery"), *worker["command"], "--pool", "solo"]
    program = "from tasks import add; print(add.delay(2, 3).get(timeout=60))"
    environment = {name: os.environ[name] for name in ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND")}
    running = Child(command, store_folder / "worker.log", cwd=deploy / "docker/app", env=environment)
    started.add(running)
    done = run(sys.executable, "-c", program, cwd=deploy / "docker/app")
    assert done.stdout == "5\n", done.stderr
    assert running.terminate(60) == 0
    assert broker.terminate() == 0


# ------------------------------------------------------------------ followed without an engine
@pytest.fixture
def installed(tmp_path: Path, dockerfile: Path) -> Iterator[Path]:
    """The build stage's virtual environment: the wheel in a fresh one, which borrows its dependencies from ours.

    The copy of the sources has what the .dockerignore lets the build see.
    """
    sources, place = tmp_path / "src", Path(tempfile.mkdtemp(prefix="odq-image-"))
    sources.mkdir()
    for name in dockerfile.with_name("Dockerfile.dockerignore").read_text().split()[1:-1]:
        source = ROOT / name[1:]
        copy: Callable[..., Any] = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, sources / name[1:])
    steps = [rest for word, rest in instructions(dockerfile) if word == "RUN"]
    make, install = (shlex.split(step) for step in steps[0].split("&&"))
    assert make[:3] == ["python", "-m", "venv"]
    assert install[:3] == ["pip", "--python", f"{make[-1]}/bin/python"]
    done = run(sys.executable, "-m", "venv", "--without-pip", str(place))
    assert done.returncode == 0, done.stderr
    (dependencies,) = {path for path in sys.path if path.endswith("site-packages")}
    (own,) = place.glob("lib/python*/site-packages")
    (own / "borrowed.pth").write_text(f"{dependencies}\n")
    options = ("--no-deps", "--quiet", "--compile", ".")
    done = run(sys.executable, "-m", "pip", "--python", f"{place}/bin/python", "install", *options, cwd=sources)
    assert done.returncode == 0, done.stderr
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@needs_root
@pytest.mark.slow
def test_the_image_serves_on_a_read_only_root(
    installed: Path, dockerfile: Path, deploy: Path, store_folder: Path, started: Children
) -> None:
    """Its command, as its user, in a mount namespace in which only its volume can be written."""
    user = Account(IMAGE_USER)
    image = dict(instructions(dockerfile))
    volume = store_folder / "volume"
    volume.mkdir()
    users = write_users(store_folder / "users.toml", user_table("health", "right", instances={"default": {}}))
    secret = store_folder / "health"
    secret.write_text("right\n")
    for path in (volume, users, secret):
        path.chmod(0o700 if path is volume else 0o400)
        os.chown(path, IMAGE_USER, IMAGE_USER)
    store_folder.chmod(0o711)
    config = store_folder / "broker.toml"
    text = (deploy / "docker/broker.toml").read_text()
    for place, own in (
        (image["VOLUME"], str(volume)), ("/run/secrets", str(store_folder)), (":5677", ":0"), (":9464", ":0"),
    ):  # fmt: skip
        assert place in text
        text = text.replace(place, own)
    config.write_text(text)
    words = [word.replace("/etc/opendata-queue", str(store_folder)) for word in json.loads(image["CMD"])]
    read_only = (
        f"mount --bind {volume} {volume} && mount -o remount,bind,ro / && "
        "{ mountpoint -q /tmp && mount -o remount,bind,ro /tmp; ! touch /tmp/x 2>/dev/null; }"
    )
    command = user.command(str(installed / "bin/opendata-queue"), *words, first=read_only)
    broker = Child(command, store_folder / "container.log", cwd=Path("/"))
    started.add(broker)
    wait_until(lambda: "listening on tcp:" in broker.log.read_text(), 60, broker.log.read_text)
    found = re.search(r"listening on tcp:0\.0\.0\.0:(\d+)", broker.log.read_text())
    metrics = re.search(r"http://0\.0\.0\.0:(\d+)/", broker.log.read_text())
    assert found is not None
    assert metrics is not None
    check = json.loads(image["HEALTHCHECK"].partition("CMD ")[2])
    environment = {
        "OPENDATA_QUEUE_URL": f"opendata://health@127.0.0.1:{found[1]}", "OPENDATA_SECRET_FILE": str(secret)
    }  # fmt: skip
    done = run(*user.command(str(installed / "bin/opendata-queue"), *check[1:]), env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    with fetch(int(metrics[1]), "/readyz") as answer:
        assert answer.status == 200
    assert broker.terminate() == 0
