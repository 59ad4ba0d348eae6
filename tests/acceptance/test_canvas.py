"""Celery's canvas on its own URL: chains, groups, chords, maps, whatever nests in what, and what fails."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, chunks, group, states, xmap, xstarmap

from ..support.broker import EmbeddedBroker
from ..support.celery_versions import from_celery_57
from ..support.ledger import Ledger
from ..support.orchard import SECONDS, Orchard, OrchardWorker, asking, orchard
from ..support.processes import children, wait_until


@pytest.fixture(scope="module", params=["solo", "prefork", "threads"])
def grove(
    request: pytest.FixtureRequest, module_store_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Orchard]:
    pool: str = request.param
    url = f"opendata://{module_store_folder / pool}"
    with orchard(url, tmp_path_factory.mktemp(pool), pool=pool) as found:
        yield found
        broker = EmbeddedBroker(module_store_folder / pool)
        # A worker closes a chord after it has sent the callback, whose result may come first.
        wait_until(lambda: broker.report()["results"]["open_chords"] == 0, 60, "every chord to be closed")


def test_chain(grove: Orchard) -> None:
    result = chain(grove.sig("add", 1, 2), grove.sig("add", 3), grove.sig("same")).apply_async()
    assert result.get(timeout=SECONDS) == 6
    assert result.parent.get(timeout=SECONDS) == 6
    assert result.parent.parent.get(timeout=SECONDS) == 3


def test_group(grove: Orchard) -> None:
    result = group(grove.sig("add", number, number) for number in range(20)).apply_async()
    assert result.get(timeout=SECONDS) == [2 * number for number in range(20)]
    assert result.successful()


def test_map_starmap_and_chunks(grove: Orchard) -> None:
    add, same = grove.sig("add"), grove.sig("same")
    assert xmap(same, [1, 2, 3], app=grove.app).apply_async().get(timeout=SECONDS) == [1, 2, 3]
    assert xstarmap(add, [(1, 1), (2, 2)], app=grove.app).apply_async().get(timeout=SECONDS) == [2, 4]
    pieces = chunks(add, zip(range(10), range(10), strict=True), 3, app=grove.app).group()
    assert pieces.apply_async().get(timeout=SECONDS) == [[0, 2, 4], [6, 8, 10], [12, 14, 16], [18]]


def test_chord_keeps_the_headers_order(grove: Orchard, ledger: Ledger, tmp_path: Path) -> None:
    """The first task ends last, unless only one runs at a time."""
    gate = tmp_path / "gate"
    if grove.worker.name.startswith("solo"):
        gate.touch()
    header = [grove.sig("hold_late_and_return", 0, str(ledger), str(gate))]
    header += [grove.sig("put_down", number, str(ledger)) for number in range(1, 8)]
    result = chord(header, grove.sig("same")).apply_async()
    ledger.wait_for("0 began", *(f"got {number}" for number in range(1, 8)))
    gate.touch()
    assert result.get(timeout=SECONDS) == list(range(8))


def test_chord_whose_header_ignores_its_results(grove: Orchard) -> None:
    header = [grove.sig("silent", number) for number in range(5)]
    assert chord(header, grove.sig("same")).apply_async().get(timeout=SECONDS) == list(range(5))


def test_chord_with_retries_in_the_header(grove: Orchard) -> None:
    header = [grove.sig("again", number) for number in range(3)]
    assert chord(header, grove.sig("same")).apply_async().get(timeout=SECONDS) == [0, 1, 2]


def test_empty_groups_and_chords(grove: Orchard) -> None:
    assert chord([], grove.sig("total")).apply_async().get(timeout=SECONDS) == 0
    assert group([], app=grove.app).apply_async().get(timeout=SECONDS) == []


def test_chain_of_chords(grove: Orchard) -> None:
    first = chord([grove.sig("add", number, 1) for number in range(3)], grove.sig("total"))
    work = first | group(grove.sig("add", number) for number in range(3)) | grove.sig("total") | grove.sig("add", 1)
    assert work.apply_async().get(timeout=SECONDS) == 22


def test_chords_in_chords(grove: Orchard) -> None:
    inner = [chord([grove.sig("add", n, k) for k in range(3)], grove.sig("total")) for n in range(3)]
    assert chord(inner, grove.sig("same")).apply_async().get(timeout=SECONDS) == [3, 6, 9]


def test_groups_in_groups(grove: Orchard) -> None:
    inner = group(grove.sig("add", number, 1) for number in range(3))
    nested = group([inner, grove.sig("add", 9, 9)]).apply_async()
    assert nested.get(timeout=SECONDS) in ([[1, 2, 3], 18], [1, 2, 3, 18])


@from_celery_57
def test_a_group_at_the_end_of_a_chain_in_a_header(grove: Orchard) -> None:
    header = [chain(grove.sig("add", 1, 1), group(grove.sig("add", 1), grove.sig("add", 2))), grove.sig("same", 7)]
    assert chord(header, grove.sig("same")).apply_async().get(timeout=SECONDS) == [[3, 4], 7]


def test_group_as_a_chords_body(grove: Orchard) -> None:
    body = group([grove.sig("total"), grove.sig("same")])
    header = [grove.sig("add", number, 0) for number in range(4)]
    assert chord(header, body).apply_async().get(timeout=SECONDS) == [6, [0, 1, 2, 3]]


def test_a_task_that_becomes_a_chord(grove: Orchard) -> None:
    assert grove.delay("swap", 4).get(timeout=SECONDS) == 10
    assert chord([grove.sig("swap", 2), grove.sig("same", 5)], grove.sig("same")).apply_async().get(
        timeout=SECONDS
    ) == [3, 5]


def test_a_failing_header_fails_the_chord(grove: Orchard, ledger: Ledger) -> None:
    body = grove.sig("total").on_error(grove.sig("note_error", str(ledger)))
    result = chord([grove.sig("add", 1, 1), grove.sig("fall", "down")], body).apply_async()
    wait_until(lambda: grove.app.AsyncResult(result.id).state == states.FAILURE, SECONDS, "the chord's failure")
    with pytest.raises(Exception, match=r"Dependency .* raised Fallen\('down'\)") as caught:
        grove.app.AsyncResult(result.id).get(timeout=SECONDS)
    assert type(caught.value).__name__ == "ChordError"
    ledger.wait_count(1)
    assert "ChordError" in ledger.lines()[0]


def test_a_failing_chain_fails_what_comes_after(grove: Orchard) -> None:
    result = (grove.sig("fall", "down") | grove.sig("same") | grove.sig("same")).apply_async()
    with pytest.raises(Exception, match="down"):
        result.get(timeout=SECONDS)


def test_a_failing_task_fails_the_group_after_it(grove: Orchard) -> None:
    """Also a chain and a group in that group; the error is that of the task."""
    same = grove.sig("same")
    members = group(same.clone(), same.clone() | same.clone(), group(same.clone(), same.clone()))
    result = (grove.sig("add", 1, 1) | grove.sig("fall") | members).apply_async()
    with pytest.raises(Exception, match=r"2") as caught:
        result.get(timeout=SECONDS)
    assert type(caught.value).__name__ == "Fallen"
    leaves = [leaf for member in result for leaf in getattr(member, "results", [member])]
    wait_until(lambda: {leaf.state for leaf in leaves} == {states.FAILURE}, SECONDS, lambda: str(leaves))


def test_a_failing_chain_in_a_header_fails_the_chord(grove: Orchard) -> None:
    fails = grove.sig("add", 1, 1) | grove.sig("fall") | group(grove.sig("same"), grove.sig("same"))
    result = chord([grove.sig("add", 1, 1), fails], grove.sig("same")).apply_async()
    with pytest.raises(Exception, match=r"2"):
        result.get(timeout=SECONDS)
    wait_until(lambda: result.state == states.FAILURE, SECONDS, lambda: result.state)


@from_celery_57
def test_a_frozen_chord_that_is_applied_twice(grove: Orchard) -> None:
    """Its second run counts anew, from the first task on."""
    work = chord([grove.sig("add", number, 0) for number in range(5)], grove.sig("total"))
    assert work.apply_async(task_id=str(uuid.uuid4())).get(timeout=SECONDS) == 10
    assert work.apply_async(task_id=str(uuid.uuid4())).get(timeout=SECONDS) == 10


@pytest.mark.slow
def test_a_thousand(broker_url: str, tmp_path: Path) -> None:
    with orchard(broker_url, tmp_path, pool="prefork") as grove:
        assert sum(group(grove.sig("add", n, 1) for n in range(1000)).apply_async().get(timeout=60)) == 500_500
        work = chord([grove.sig("add", number, 1) for number in range(1000)], grove.sig("total"))
        assert work.apply_async().get(timeout=60) == 500_500


def test_a_header_task_that_runs_twice_counts_once(
    store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger
) -> None:
    gate = tmp_path / "gate"
    options: dict[str, Any] = {
        "result_backend": broker_url,
        "task_ignore_result": False,
        "worker_prefetch_multiplier": 1,
    }
    with children() as started, asking(broker_url) as app:
        first = OrchardWorker(broker_url, tmp_path, "first", **options)
        started.add(first)
        first.wait_ready()
        held = app.signature("orchard.hold_late_and_return", ("held", str(ledger), str(gate)))
        others = [app.signature("orchard.same", (number,)) for number in range(3)]
        body = app.signature("orchard.put_down", (str(ledger),))
        result = chord([held, *others], body).apply_async()
        ledger.wait_for("held began")
        first.kill()
        second = OrchardWorker(broker_url, tmp_path, "second", **options)
        started.add(second)
        second.wait_ready()
        wait_until(lambda: ledger.runs()["held began"] == 2, 60, "the second run")
        gate.touch()
        assert result.get(timeout=SECONDS) == ["held", 0, 1, 2]
        assert second.terminate() == 0
    assert ledger.runs()["got ['held', 0, 1, 2]"] == 1
