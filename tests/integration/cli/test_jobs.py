"""`opendata-queue job`: what it shows, how a wait ends, and ids that a shell or a terminal could misread."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from kombu_opendata import QueueClient

from ...support.batches import commit_job
from ...support.processes import INTERRUPTIBLE, Child, Children, tail, wait_until
from ...support.served import COMMAND, ServedBroker
from .conftest import HOSTILE, run

LONGEST = "é" * 127 + "x"
NAMES = ["nightly", "a/b c", "-dash", 'it\'s "odd"', "🐘", HOSTILE, LONGEST]


def acknowledge(client: QueueClient, queue: str, tasks: int) -> None:
    while tasks:
        for message in client.read_with_poll(queue, vt=60, qty=tasks, max_poll_seconds=60):
            client.archive(queue, message)
            tasks -= 1


@pytest.fixture(scope="module")
def jobs(client: QueueClient, module_store_folder: Path) -> str:
    """The URL of a broker with a job of each name, which wait in a queue."""
    client.create("jobs")
    for name in NAMES:
        commit_job(client, name, 3, queue="jobs")
    return f"opendata://{module_store_folder}"


@pytest.mark.parametrize("name", NAMES)
def test_any_id_is_shown(jobs: str, name: str, invoke: Callable[..., Result]) -> None:
    shown = invoke("job", "show", "--", name)
    assert shown.exit_code == 0, shown.stderr
    assert "\x1b" not in shown.stdout
    assert "3 of 3 rows" in shown.stdout
    document = json.loads(invoke("job", "show", "--json", "--", name).stdout)
    assert (document["job_id"], document["rows"], document["tasks"]["waiting"]) == (name, 3, 3)
    assert document["queues"]["jobs"]["routed"] == 3
    assert document["committed_at"].startswith("20")


def test_jobs_are_listed_in_pages(jobs: str, invoke: Callable[..., Result]) -> None:
    listed, after = [], ""
    while after is not None:
        page = json.loads(invoke("job", "list", "--limit", "2", f"--after={after}", "--json").stdout)
        listed += [job["job_id"] for job in page["items"]]
        after = page["next"]
    assert listed == sorted(NAMES, key=str.encode)
    shown = invoke("job", "list", "--limit", "2")
    assert "-dash" in shown.stdout
    assert shown.stderr == "next page: opendata-queue job list --after=-dash\n"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["show", "other"], 1, "the broker knows no job 'other'"),
        (["wait", "other"], 1, "the broker knows no job 'other'"),
        (["show", ""], 1, "1 to 255 bytes, not 0"),
        (["show", f"{LONGEST}é"], 1, "1 to 255 bytes, not 257"),
        (["wait", "nightly", "--timeout", "soon"], 2, "is not a duration"),
        (["wait", "nightly", "--timeout", "0s"], 5, "after 0 s: 3 tasks have not ended"),
        (["list", "--limit", "0"], 2, "limit"),
    ],
)
def test_what_is_refused(jobs: str, words: list[str], code: int, text: str, invoke: Callable[..., Result]) -> None:
    refused = invoke("job", *words)
    assert refused.exit_code == code, refused.stderr
    assert text in refused.stderr


def test_a_wait_ends_with_the_tasks(client: QueueClient, jobs: str) -> None:
    client.create("ending")
    commit_job(client, "ending", 3, queue="ending")
    acknowledge(client, "ending", 3)
    waited = run("job", "wait", "ending", url=jobs)
    assert waited.returncode == 0, waited.stderr
    assert waited.stdout == "job 'ending' has ended: 3 acknowledged\n"
    assert json.loads(run("job", "wait", "ending", "--json", url=jobs).stdout)["has_ended"] is True


def test_failed_tasks_are_reported_and_retried_in_their_job(
    client: QueueClient, jobs: str, invoke: Callable[..., Result]
) -> None:
    client.create("mixed")
    first = commit_job(client, "it's mixed", 3, queue="mixed").first_id
    client.reject("mixed", client.read("mixed", vt=60)[0])
    acknowledge(client, "mixed", 2)
    waited = invoke("job", "wait", "it's mixed")
    assert waited.exit_code == 7
    assert waited.stdout == 'job "it\'s mixed" has ended: 2 acknowledged, 1 rejected\n'
    hint, error = waited.stderr.splitlines()
    assert error == 'Error: 1 task of job "it\'s mixed" did not succeed'
    words = shlex.split(hint.removeprefix("failed tasks: opendata-queue "))
    assert json.loads(invoke(*words, "--json").stdout)["items"][0]["message_id"] == first
    shown = run("job", "show", "it's mixed", "--url", jobs)
    words = shlex.split(shown.stderr.removeprefix("failed tasks: opendata-queue "))
    assert "--url" in words
    assert json.loads(run(*words, "--json").stdout)["items"][0]["message_id"] == first

    retried = invoke("job", "retry", "it's mixed")
    assert (retried.exit_code, retried.stdout) == (0, "1 message ready again\n")
    again = invoke("job", "retry", "it's mixed")
    assert (again.exit_code, again.stdout) == (1, "nothing runs again\n")
    refused = invoke("job", "delete", "it's mixed", "--yes")
    assert refused.exit_code == 1
    assert "have not ended: cancel it first" in refused.stderr
    acknowledge(client, "mixed", 1)
    assert invoke("job", "wait", "it's mixed").exit_code == 0
    assert invoke("job", "delete", "it's mixed", "--yes").stdout == 'job "it\'s mixed" deleted\n'
    assert invoke("job", "show", "it's mixed").exit_code == 1


def test_a_job_is_cancelled_once(client: QueueClient, jobs: str, invoke: Callable[..., Result]) -> None:
    client.create("cancelled")
    commit_job(client, "cancelled", 3, queue="cancelled")
    (held,) = client.read("cancelled", vt=60)
    unconfirmed = invoke("job", "cancel", "cancelled")
    assert unconfirmed.exit_code == 2
    assert client.get_job("cancelled").tasks.waiting == 3
    done = invoke("job", "cancel", "cancelled", "--yes")
    assert (done.exit_code, done.stdout) == (0, "2 tasks removed; 1 continue, 0 had ended\n")
    assert "cancelled" in invoke("job", "show", "cancelled").stdout
    client.archive("cancelled", held)
    assert invoke("job", "cancel", "cancelled", "--yes").exit_code == 1
    waited = invoke("job", "wait", "cancelled")
    assert (waited.exit_code, waited.stdout) == (7, "job 'cancelled' has ended: 1 acknowledged, 2 removed\n")
    assert waited.stderr == "Error: 2 tasks of job 'cancelled' did not succeed\n", "no list has them"


def waiting(url: str, job_id: str, folder: Path, client: QueueClient) -> Child:
    """A command that waits for a job, and has connected."""
    line = [*INTERRUPTIBLE, str(COMMAND), "job", "wait", job_id, "--url", url]
    command = Child(line, folder / "wait.log", cwd=folder)
    wait_until(lambda: any(one.name == "opendata-queue" for one in client.workers()), 60, lambda: tail(command.log))
    return command


def test_ctrl_c_ends_the_wait_and_not_the_job(
    client: QueueClient, jobs: str, tmp_path: Path, started: Children
) -> None:
    started.add(command := waiting(jobs, "nightly", tmp_path, client))
    command.process.send_signal(signal.SIGINT)
    assert command.wait(60) == 130
    expected = f"the job continues: 'opendata-queue job wait --url {jobs} nightly' waits again\ninterrupted\n"
    assert command.log.read_text() == expected
    assert client.get_job("nightly").tasks.waiting == 3


def test_a_wait_outlasts_a_restart_of_the_broker(tmp_path: Path, store_folder: Path, started: Children) -> None:
    store = ("--store", f"file://{store_folder}/store", "--listen")
    started.add(broker := ServedBroker(tmp_path, *store, "tcp:127.0.0.1:0"))
    url = f"opendata://127.0.0.1:{broker.port}"
    with QueueClient(url) as client:
        client.create("q")
        commit_job(client, "job", 3)
        started.add(command := waiting(url, "job", tmp_path, client))
    broker.kill()
    started.add(ServedBroker(tmp_path, *store, f"tcp:127.0.0.1:{broker.port}"))
    with QueueClient(url) as client:
        acknowledge(client, "q", 3)
    assert command.wait(60) == 0, tail(command.log)
    assert "job 'job' has ended: 3 acknowledged" in command.log.read_text()
