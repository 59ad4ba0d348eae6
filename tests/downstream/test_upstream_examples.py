"""The examples of Kombu and Celery, from their source distributions, with this broker's URL in place of RabbitMQ's."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import trustme

from ..support.processes import Child, Children, run, tail, wait_until
from ..support.served import ServedBroker
from .compatibility import Row
from .environments import ENVIRONMENTS

COMPATIBILITY = [
    Row(
        package="kombu",
        tried="all of its examples",
        result="All work but `delayed_infra.py`, which builds RabbitMQ's queues for delays: bindings between exchanges "
        "do not exist here, and are not needed for `countdown` and `eta`.",
        settings="`import kombu_opendata` in a program that imports only `kombu.Connection`",
    ),
    Row(
        package="celery",
        tried="all of its examples, with their result backends (`rpc://`, a database)",
        result="All work but three that fail with any broker, as they are for Celery 3: `gevent`, `resultgraph`, "
        "`celery_http_gateway`. With any broker, `security` needs a new certificate, and `webcrawler.py` a worker that "
        "accepts pickle.",
    ),
]
SECONDS = 90
#: runs a program after the import that programs without Celery need
LOADED = ("-c", "import kombu_opendata, runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')")
BROKER = re.compile(r"""(?<=['"])(?:py)?(?:amqp|redis)://[^'"]*(?=['"])""")


def sources(package: str) -> Path:
    """The unpacked source distribution of the installed version, which is downloaded once."""
    name = f"{package}-{importlib.metadata.version(package)}"
    folder = ENVIRONMENTS / "sources"
    if not (folder / name).exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        only = ["--no-binary", ":all:", "--no-deps", "--dest", str(folder)]
        run([*pip, *only, name.replace("-", "==")], ENVIRONMENTS.parent, seconds=300)
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / name


class Examples:
    """A copy of the examples with the URL of a broker, and the processes of a test."""

    def __init__(self, package: str, url: str, folder: Path, started: Children) -> None:
        self.folder = folder / package
        self._logs = folder
        self._started = started
        shutil.copytree(sources(package) / "examples", self.folder)
        for path in self.folder.rglob("*.py"):
            path.write_text(BROKER.sub(url, path.read_text()))

    def run(self, *arguments: str, cwd: str = "") -> str:
        """Run Python to its end; it must succeed."""
        return run([sys.executable, *arguments], self.folder / cwd, seconds=SECONDS)

    def fail(self, *arguments: str, cwd: str = "") -> str:
        """Run Python to its end; it must fail. Return what it prints to standard error."""
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=self.folder / cwd, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode != 0, done.stdout
        return done.stderr

    def start(self, *arguments: str, cwd: str = "", ready: str) -> Child:
        """Start Python, and wait for a line of its output."""
        log = self._logs / f"{'-'.join(arguments).replace('/', '-')}.log"
        child = Child([sys.executable, "-u", *arguments], log, cwd=self.folder / cwd)
        self._started.add(child)
        wait_for(child, ready)
        return child

    def worker(self, app: str, *options: str, cwd: str) -> Child:
        app_options = ["-A", app] if app else []
        return self.start(
            "-m", "celery", *app_options, "worker", "--loglevel=INFO", "--concurrency=2", *options,
            cwd=cwd, ready=r"@\S+ ready\.",
        )  # fmt: skip


def wait_for(child: Child, pattern: str, times: int = 1) -> None:
    """Until the log has so many places that match."""

    def found() -> bool:
        if len(re.findall(pattern, child.log.read_text())) >= times:
            return True
        child.check()
        return False

    wait_until(found, SECONDS, lambda: f"{pattern!r} in the log:\n{tail(child.log)}")


def end(*workers: Child) -> None:
    for worker in workers:
        assert worker.terminate() == 0, tail(worker.log)


@pytest.fixture
def kombu(broker: ServedBroker, tmp_path: Path, started: Children) -> Examples:
    return Examples("kombu", broker.url, tmp_path, started)


@pytest.fixture
def celery(broker: ServedBroker, tmp_path: Path, started: Children) -> Examples:
    return Examples("celery", broker.url, tmp_path, started)


# ------------------------------------------------------------ Kombu
def test_all_examples_of_kombu_are_tried(kombu: Examples) -> None:
    names = {str(path.relative_to(kombu.folder)) for path in kombu.folder.rglob("*.py")}
    assert names == {
        "complete_receive.py", "complete_send.py", "delayed_infra.py", "experimental/async_consume.py",
        "hello_consumer.py", "hello_publisher.py", "memory_transport.py", "rpc-tut6/rpc_client.py",
        "rpc-tut6/rpc_server.py", "simple_eventlet_receive.py", "simple_eventlet_send.py", "simple_receive.py",
        "simple_send.py", "simple_task_queue/__init__.py", "simple_task_queue/client.py",
        "simple_task_queue/queues.py", "simple_task_queue/tasks.py", "simple_task_queue/worker.py",
    }  # fmt: skip


def test_simple_queues(kombu: Examples) -> None:
    sent = kombu.run(*LOADED, "hello_publisher.py").removeprefix("Sent: ")
    assert kombu.run(*LOADED, "hello_consumer.py") == f"Received: {sent}"
    assert "No such transport: opendata" in kombu.fail("simple_send.py")
    kombu.run(*LOADED, "simple_send.py")
    assert kombu.run(*LOADED, "simple_receive.py") == "{'hello': 'world'}\n"
    kombu.run(*LOADED, "simple_eventlet_send.py")
    received = kombu.run(*LOADED, "simple_eventlet_receive.py").splitlines()
    assert sorted(received) == sorted(f"{{'hello': 'world{n}'}}" for n in range(10))


def test_consumers(kombu: Examples) -> None:
    kombu.run(*LOADED, "simple_send.py")
    receiver = kombu.start("complete_receive.py", ready="Received message: {'hello': 'world'}")
    kombu.run("complete_send.py")
    wait_for(receiver, "Received message: {'hello': 'world'}", times=2)
    told = kombu.run("experimental/async_consume.py")
    assert told.splitlines() == ["message sent", "received: b'hello world'"]
    assert "RECEIVED MESSAGE: {'foo': 'bar'}" in kombu.run("memory_transport.py")


def test_calls(kombu: Examples) -> None:
    kombu.start("rpc_server.py", cwd="rpc-tut6", ready="Awaiting RPC requests")
    assert "Got 832040" in kombu.run("rpc_client.py", cwd="rpc-tut6")


def test_a_task_queue(kombu: Examples) -> None:
    worker = kombu.start("-m", "simple_task_queue.worker", ready="Connected to")
    kombu.run("-m", "simple_task_queue.client")
    wait_for(worker, r"Got task: hello_task\('Kombu'\)")


def test_queues_for_delays_are_not_needed(kombu: Examples) -> None:
    assert "exchange_bind" in kombu.fail("delayed_infra.py")


# ------------------------------------------------------------ Celery
def test_all_examples_of_celery_are_tried(celery: Examples) -> None:
    assert {path.name for path in celery.folder.iterdir() if path.is_dir()} == {
        "app", "celery_http_gateway", "django", "eventlet", "gevent", "next-steps", "periodic-tasks", "pydantic",
        "quorum-queues", "resultgraph", "security", "stamping", "tutorial",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("folder", "app", "program", "outcome"),
    [
        ("tutorial", "tasks", "from tasks import add; add.delay(2, 3)", r"succeeded in .*s: 5"),
        ("app", "myapp", "from myapp import add; add.delay(16, 16)", r"succeeded in .*s: 32"),
        (
            "pydantic",
            "tasks",
            "from tasks import x; x.delay({'value': 7})",
            r"succeeded in .*s: {'value': 'example: 7'}",
        ),
    ],
)
def test_a_task(celery: Examples, folder: str, app: str, program: str, outcome: str) -> None:
    worker = celery.worker(app, cwd=folder)
    celery.run("-c", program, cwd=folder)
    wait_for(worker, outcome)
    end(worker)


def test_results_as_calls(celery: Examples) -> None:
    worker = celery.worker("proj", cwd="next-steps")
    program = (
        "from celery import chord, group; from proj.tasks import add, mul, xsum;"
        "print(add.delay(4, 4).get(timeout=30), (add.s(4, 4) | mul.s(8)).apply_async().get(timeout=30),"
        "group(add.s(i, i) for i in range(3)).apply_async().get(timeout=30))"
    )
    assert celery.run("-c", program, cwd="next-steps") == "8 64 [0, 2, 4]\n"
    end(worker)


def test_a_periodic_task(celery: Examples) -> None:
    worker = celery.worker("myapp", "--beat", cwd="periodic-tasks")
    wait_for(worker, r"WARNING/.*\] hello")
    end(worker)


def test_a_django_project(celery: Examples) -> None:
    celery.run("manage.py", "migrate", cwd="django")
    worker = celery.worker("proj", cwd="django")
    program = (
        "from demoapp.models import Widget; from demoapp.tasks import *; widget = Widget.objects.create(name='a');"
        "rename_widget.delay(widget.id, 'b').get(timeout=30); widget.refresh_from_db(); add.delay_on_commit(2, 3);"
        "print(widget.name, count_widgets.delay().get(timeout=30), xsum.delay([1, 2]).get(timeout=30))"
    )
    assert celery.run("manage.py", "shell", "-c", program, cwd="django").splitlines()[-1] == "b 1 3"
    wait_for(worker, r"demoapp.tasks.add\[.*succeeded in .*s: 5")
    end(worker)


def test_signed_messages(celery: Examples) -> None:
    issued = trustme.CA(key_type=trustme.KeyType.RSA).issue_cert("worker", key_type=trustme.KeyType.RSA)
    issued.private_key_pem.write_to_path(str(celery.folder / "security/ssl/worker.key"))
    issued.cert_chain_pems[0].write_to_path(str(celery.folder / "security/ssl/worker.pem"))
    worker = celery.worker("mysecureapp", cwd="security")
    program = "from mysecureapp import boom; print(boom.delay().get(timeout=30))"
    assert celery.run("-c", program, cwd="security") == "I am a signed message\n"
    end(worker)


def test_stamps(celery: Examples) -> None:
    worker = celery.worker("myapp", "--pool=prefork", cwd="stamping")
    program = "import examples as e; e.run_example1(); e.run_example2(); e.run_example3(); e.run_example_with_replace()"
    celery.run("-c", program, cwd="stamping")
    wait_for(worker, r"identity_task\[\S+\] succeeded", times=15)
    celery.run("-c", "import revoke_example as e; e.run_then_revoke()", cwd="stamping")
    wait_for(worker, "4 seconds passed")
    active = ("-m", "celery", "-A", "myapp", "inspect", "active")
    wait_until(lambda: "- empty -" in celery.run(*active, cwd="stamping"), SECONDS, lambda: tail(worker.log))
    assert "170 seconds passed" not in worker.log.read_text()
    celery.run("-c", "import revoke_example as e; e.revoke_then_run()", cwd="stamping")
    wait_for(worker, r"Discarding revoked task: tasks\.waitfor")
    end(worker)


def test_quorum_queues(celery: Examples) -> None:
    celery.run("declare_queue.py", cwd="quorum-queues")
    worker = celery.worker("myapp", cwd="quorum-queues")
    program = "import io, sys; sys.stdin = io.StringIO('1\\n2\\n3\\n4\\nQ\\n'); from myapp import example; example()"
    told = celery.run("-c", program, cwd="quorum-queues")
    assert "Payload: Hello, Quorum Queue!" in told
    assert "  - celery" in told
    for outcome in ("Hello, Quorum Queue!", "3", "7", "11"):
        wait_for(worker, rf"succeeded in .*s: '?{outcome}")
    assert worker.wait(SECONDS) == 0, tail(worker.log)


def test_eventlet(celery: Examples, broker: ServedBroker) -> None:
    worker = celery.worker("", "--pool=eventlet", cwd="eventlet")
    program = (
        "from bulk_task_producer import ProducerPool; import celeryconfig; from celery import Celery;"
        "from tasks import urlopen; app = Celery('x'); app.config_from_object(celeryconfig); pool = ProducerPool(app);"
        "receipts = [pool.apply_async(urlopen, ('http://127.0.0.1:%d/metrics',), {}) for _ in range(20)];"
        "[receipt.wait() for receipt in receipts]; print(len({receipt.result.id for receipt in receipts}))"
    )
    assert celery.run("-c", program % broker.metrics_port, cwd="eventlet") == "20\n"
    wait_for(worker, r"tasks.urlopen\[\S+\] succeeded in \S+s: [1-9]\d+", times=20)
    crawl = "import tasks, celeryconfig; from celery import current_app as app; app.config_from_object(celeryconfig);"
    crawl += f"from webcrawler import crawl; crawl.delay('http://127.0.0.1:{broker.metrics_port}/metrics')"
    celery.run("-c", crawl, cwd="eventlet")
    wait_for(worker, "Refusing to deserialize untrusted content of type pickle")
    end(worker)


@pytest.mark.parametrize(
    ("folder", "module", "error"),
    [
        ("gevent", "tasks", "cannot import name 'task' from 'celery'"),
        ("resultgraph", "tasks", "cannot import name 'task' from 'celery'"),
        ("celery_http_gateway", "tasks", "cannot import name 'task' from 'celery'"),
        ("celery_http_gateway", "manage", "cannot import name 'execute_manager' from 'django.core.management'"),
    ],
)
def test_examples_for_celery_3_fail_before_they_connect(celery: Examples, folder: str, module: str, error: str) -> None:
    assert error in celery.fail("-c", f"import {module}", cwd=folder)
