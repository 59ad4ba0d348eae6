"""The broker's maintenance as a process does it by itself."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from ..support.processes import children, wait_until
from ..support.served import COMMAND, ServedBroker


def test_how_often_a_broker_collects_by_itself_is_an_option(store_folder: Path, tmp_path: Path) -> None:
    with children() as started:
        store = ("--store", f"file://{store_folder}", "--listen", f"unix:{store_folder}/broker.sock")
        served = ServedBroker(tmp_path, *store, "--maintain-every", "0.1")
        started.add(served)

        def collected() -> bool:
            told = subprocess.run(
                [COMMAND, "status", str(store_folder), "--json"], capture_output=True, check=True, timeout=60
            )
            return bool(json.loads(told.stdout)["instances"]["default"]["maintenance"]["collect"]["by"] == "broker")

        wait_until(collected, 5, "a pass of the broker's own, before its usual ten seconds")
        assert served.terminate() == 0
