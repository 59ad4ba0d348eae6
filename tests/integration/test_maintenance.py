"""The broker's maintenance as a process does it by itself."""

from __future__ import annotations

from pathlib import Path

from ..support.processes import children, wait_until
from ..support.served import ServedBroker
from ..support.status import read_report


def test_how_often_a_broker_collects_by_itself_is_an_option(store_folder: Path, tmp_path: Path) -> None:
    seen: set[int] = set()
    with children() as started:
        store = ("--store", f"file://{store_folder}", "--listen", f"unix:{store_folder}/broker.sock")
        served = ServedBroker(tmp_path, *store, "--maintain-every", "0.1")
        started.add(served)

        def collected_often() -> bool:
            told = read_report(str(store_folder))["instances"]["default"]["maintenance"]["collect"]
            if told["by"] == "broker":
                seen.add(told["at_ms"])
            return len(seen) > 10

        wait_until(collected_often, 60, "more passes of the broker's own than at its usual ten seconds")
        assert served.terminate() == 0
