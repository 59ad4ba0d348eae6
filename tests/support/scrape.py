"""A scrape of a broker's metrics, as Prometheus would read it."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from typing import Any

from prometheus_client import parser

from .processes import wait_until

PATIENCE_SECONDS = 60


class Scrape:
    """What one scrape brought. Counters are known by their whole name, ``_total`` included."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in parser.text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]
        self._values = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in self.samples}
        assert len(self._values) == len(self.samples), "no sample is there twice"

    def value(self, name: str, **labels: str) -> float:
        """The sample with just these labels, beside ``broker_instance``, which is "default" where it has one."""
        for extra in ({}, {"broker_instance": "default"}):
            found = self._values.get((name, frozenset({**extra, **labels}.items())))
            if found is not None:
                return found
        raise AssertionError(f"no sample {name} {labels} in:\n{self.text}")

    def of(self, queue: str) -> dict[str, float]:
        """What is not 0 of a queue, without the prefix."""
        return {
            sample.name.removeprefix("opendata_queue_"): sample.value
            for sample in self.samples
            if sample.labels.get("queue") == queue and sample.value
        }


def fetch(port: int, path: str = "/metrics", **headers: str) -> Any:
    """An open answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    return urllib.request.urlopen(request, timeout=PATIENCE_SECONDS)


def scrape(port: int) -> Scrape:
    """One scrape; it may be of a second ago."""
    with fetch(port) as answer:
        assert answer.status == 200
        return Scrape(answer.read().decode())


def scrape_until(port: int, condition: Callable[[Scrape], object], seconds: float = PATIENCE_SECONDS) -> Scrape:
    """Scrape until the condition holds; the test fails when it does not in time."""
    found: list[Scrape] = []

    def holds() -> object:
        found[:] = [scrape(port)]
        return condition(found[0])

    wait_until(holds, seconds, lambda: f"another scrape than:\n{found[0].text if found else ''}")
    return found[0]
