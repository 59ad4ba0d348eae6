"""Sends thousands of tasks, kills the broker with -9 half way, and counts each task. Run it with ``make demo``.

It starts a real Celery worker on a new store in a temporary folder, which is kept. The exit code is 1 if a task was
lost or ran twice.
"""

import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
from demo_processes import Broker, DemoError, Worker
from demo_run import Ledger, Result, Sender, count, send_and_watch
from demo_tasks import app
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kombu_opendata import OpenDataError

QUICKSTART = Path(__file__).resolve().parents[1] / "quickstart"
console = Console(highlight=False, soft_wrap=True)


@click.command(help=__doc__.partition("\n")[0])
@click.option("--tasks", default=3000, show_default=True, type=click.IntRange(2, 99_999_999), help="how many to send")
@click.option("--folder", type=click.Path(path_type=Path), help="where to put the store  [default: a new one]")
@click.option("--pool", default="prefork", show_default=True, type=click.Choice(["prefork", "solo", "threads"]))
@click.option("--concurrency", default=2, show_default=True, type=click.IntRange(1))
@click.option("--deadline", default=180.0, show_default=True, help="seconds after which it gives up")
def main(tasks: int, folder: Path | None, pool: str, concurrency: int, deadline: float) -> None:
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, interrupted)
    folder = (folder or Path(tempfile.mkdtemp(prefix="opendata-demo-"))).resolve()
    store = folder / "queue"
    os.environ["CELERY_BROKER_URL"] = url_of(store)
    console.print(f"[bold]broker_url[/] = {url_of(store)}")
    result = Result(tasks)
    try:
        play(folder, Broker(store), result, pool=pool, concurrency=concurrency, deadline_seconds=deadline)
    except DemoError as exc:
        console.print(f"[bold red]The demo failed:[/] {exc}", markup=True)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print(f"Interrupted. The worker and the broker are stopped; the store is {store}")
        sys.exit(130)
    report(result)
    try_next(store, folder)
    sys.exit(0 if result.good else 1)


def play(folder: Path, broker: Broker, result: Result, *, pool: str, concurrency: int, deadline_seconds: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(folder / "ran.txt")
    sender = Sender(ledger, result.total)
    with ExitStack() as cleanup:
        # Undone in reverse: first whatever could start a broker again, the broker last.
        cleanup.callback(broker.stop)
        cleanup.callback(app.close)
        start_broker()
        worker = Worker(folder, pool=pool, concurrency=concurrency)
        cleanup.callback(worker.stop)
        cleanup.callback(sender.stop)
        worker.wait_ready(60)
        console.print(f"worker {worker.process.pid} is ready ({pool}, {concurrency} at once); broker {broker.pid()}")
        with progress(result.total) as (show, tell):
            send_and_watch(
                sender, ledger, worker, broker, result, deadline_seconds=deadline_seconds, show=show, tell=tell
            )
        worker.stop()
        count(ledger, result)


def start_broker() -> None:
    """The first client starts the broker. Here that is the demo, so that an unusable folder is reported at once."""
    try:
        with app.connection_for_write() as connection:
            connection.connect()
    except OpenDataError as exc:
        raise DemoError(str(exc)) from exc


@contextmanager
def progress(total: int) -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """Two bars on a terminal; elsewhere only the events."""
    bars = Progress(
        TextColumn("{task.description:>5}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bars:
        sent_bar, done_bar = bars.add_task("sent", total=total), bars.add_task("done", total=total)

        def show(sent: int, done: int) -> None:
            bars.update(sent_bar, completed=sent)
            bars.update(done_bar, completed=done)

        yield show, console.print


def report(result: Result) -> None:
    """The counts and rates, and the verdict above them."""
    console.print()
    if result.good:
        console.print(f"[bold green]Every one of the {result.total:,} tasks ran exactly once.[/]")
    else:
        console.print("[bold red]Not every task ran exactly once.[/]")
    ran = result.total - len(result.lost)
    rows = (
        ("sent", result.total, f"{rate(result.total, result.send_seconds)}, each on disk before the next"),
        ("ran", ran, rate(ran, result.run_seconds)),
        ("did not run", len(result.lost), some(result.lost)),
        ("ran twice", len(result.repeated), some(result.repeated)),
        ("left in queue", result.waiting, ""),
    )
    for name, number, more in rows:
        console.print(f"  {name:<14}{number:>7,}  {more}".rstrip())


def rate(number: int, seconds: float) -> str:
    return f"{seconds:.1f} s, {number / seconds:,.0f}/s" if seconds else ""


def some(numbers: list[int]) -> str:
    return " ".join(map(str, numbers[:10])) + (" …" if len(numbers) > 10 else "")


def try_next(store: Path, folder: Path) -> None:
    """What was left behind, and commands to copy."""
    here = Path(sys.executable).parent
    there = "" if str(here) in os.environ.get("PATH", "").split(os.pathsep) else f"{shlex.quote(str(here))}/"
    quoted = shlex.quote(str(store))
    commands = {
        f"cd {shlex.quote(str(QUICKSTART))}; export OPENDATA_URL={shlex.quote(url_of(store))}": "in two shells",
        f"{there}celery -A tasks worker --loglevel=INFO": "in one of them",
        f"{there}python -c 'from tasks import add; add.delay(2, 2)'": "in the other",
        f"{there}celery -A tasks inspect ping": "while the worker runs",
        f"{there}opendata-queue status {quoted}": "what the broker knows, while it runs",
        f"rm -r {shlex.quote(str(folder))}": "when you have seen enough",
    }
    console.print(f"\n[bold]The store[/] is {store} (the worker's log and the list of what ran are beside it).")
    console.print("[bold]Try next[/]")
    for command, when in commands.items():
        console.print(f"  {command}", markup=False, end="")
        console.print(f"  [dim]# {when}[/]")


def url_of(store: Path) -> str:
    return f"opendata://{quote(str(store))}"


def interrupted(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
