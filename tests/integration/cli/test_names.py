"""Names of queues, exchanges, workers and users may have anything in them, in every verb that takes one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from kombu_opendata import QueueClient
from kombu_opendata.cli.root import main

from ...support.command_lines import VERBS
from .conftest import run

NAMES = ("a/b", 'say "hi"', "it's", "🐇 down the hole", "-x", "--help", "ein Raum", "$HOME;`id`", "名前", "%2F%00", "*")
ALL_IN_ONE = '-x/"it\'s" 🐇 $HOME %2F *'
#: in this order; {q} and {r} are queues, {x} is an exchange, {w} is a worker, {u} is a user in the file {f},
#: {i} is the message that was sent
LINES = """
queue create -- {q}
queue create -- {r}
exchange create -- {x}
binding create --routing-key=k -- {q} {x}
binding list --exchange={x} -- {q}
exchange show -- {x}
exchange explain --routing-key=k -- {x}
publish hello --exchange={x} --routing-key=k
send -- {q} hello
peek -- {q}
message {i} --queue={q}
queue show -- {q}
queue metrics -- {q} {r}
queue recent -- {q} {r}
queue alter --yes --max-length=100 -- {q}
queue partitions --search={q} -- {q}
queue delay -- {q} 0
queue pause -- {q}
queue resume -- {q}
queue copy -- {q} {r}
queue move -- {q} {r}
messages --queue={q}
attempts --queue={q} --consumer={w}
done list -- {q}
done count -- {q}
done delete --older-than=1d --yes -- {q}
failed list --worker={w} -- {q}
failed count -- {q}
failed archive -- {q}
failed retry --to={r} -- {q}
failed delete --all --yes -- {q}
filter explain -H routing_key={q} -- {q}
replay --from=first -- {q}
replay --progress -- {q}
worker messages -- {w}
worker suspend -- {w}
worker resume -- {w}
worker release -- {w}
worker shutdown -- {w}
worker reclaim -- {q}
store inspect --queue={q}
queue purge --yes -- {q}
binding delete --routing-key=k -- {q} {x}
exchange delete --yes -- {x}
queue delete --yes -- {q}
queue delete --yes -- {r}
user add --users={f} someone-else
user add --users={f} -- {u}
user permit --everything --users={f} -- {u}
user delete --yes --users={f} -- {u}
""".strip().splitlines()
#: parameters that name something
NAMED = {"queue", "queues", "source", "target_queue", "exchange", "worker", "workers", "consumers", "into"}
#: names of instances are those of folders, which is checked; `create` and `alter` name it only in arguments
OTHERS = {"instance create", "user list"}

Runner = Callable[..., tuple[int, str, str]]


def test_every_verb_that_takes_a_name_is_here() -> None:
    tried = {verb for verb in VERBS for line in LINES if f"{line} ".startswith(f"{verb} ")}
    takes = {
        verb for verb, command in VERBS.items()
        if NAMED & {each.name for each in command.params if isinstance(each.type, click.types.StringParamType)}
    }  # fmt: skip
    assert takes - tried - OTHERS == set()


@pytest.fixture
def names(client: QueueClient, url: str, tmp_path: Path) -> Iterator[Callable[[str], dict[str, str]]]:
    """The names in the lines, with a worker that is connected."""
    opened: list[QueueClient] = []

    def name(text: str) -> dict[str, str]:
        worker = QueueClient(f"opendata://{url}", name=text)
        opened.append(worker)
        worker.list_queues()
        return {
            "q": text,
            "r": f"{text} 2",
            "x": text,
            "w": text,
            "u": text,
            "f": str(tmp_path / "users.toml"),
            "i": "0",
        }

    yield name
    for one in opened:
        one.close()


def documents(text: str) -> list[Any]:
    """The JSON documents in an output."""
    found: list[Any] = []
    text = text.strip()
    while text:
        one, end = json.JSONDecoder().raw_decode(text)
        found.append(one)
        text = text[end:].strip()
    return found


def check(given: dict[str, str], call: Runner) -> None:
    """Run all lines, and see that what shows a name shows it as it is."""
    for line in LINES:
        verb = next(verb for verb in VERBS if f"{line} ".startswith(f"{verb} "))
        words = [word.format(**given) for word in line.split()]
        words.insert(len(verb.split()), "--json")
        code, out, err = call(words, f"a secret for {verb}")
        assert code == 0, f"{line}: {out}{err}"
        found = documents(out)
        if verb == "send":
            given["i"] = str(found[0]["id"])
        elif verb in ("queue show", "exchange show", "user permit"):
            assert found[0]["name"] in given.values()


@pytest.mark.parametrize("text", [ALL_IN_ONE, *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES)])
def test_in_this_process(text: str, names: Callable[[str], dict[str, str]], url: str) -> None:
    def call(words: list[str], stdin: str) -> tuple[int, str, str]:
        told = CliRunner().invoke(main, words, input=stdin, env={"OPENDATA_QUEUE_URL": url})
        return told.exit_code, told.stdout, told.stderr

    check(names(text), call)


@pytest.mark.slow
def test_through_the_console_script(names: Callable[[str], dict[str, str]], url: str) -> None:
    def call(words: list[str], stdin: str) -> tuple[int, str, str]:
        told = run(*words, url=url, stdin=stdin)
        return told.returncode, told.stdout, told.stderr

    check(names(ALL_IN_ONE), call)
