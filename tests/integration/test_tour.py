"""docs/tour.md, run block by block as a reader does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

TOUR = (Path(__file__).resolve().parents[2] / "docs" / "tour.md").read_text()
BLOCKS = re.findall(r"(?ms)^```(sh|python)\n(.*?)^```$", TOUR)


def test_the_tour(store_folder: Path) -> None:
    bin_folder = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "OPENDATA_QUEUE_URL": f"{store_folder}/tour"}
    told = []
    for kind, code in BLOCKS:
        command = ["sh", "-e", "-c", code] if kind == "sh" else [sys.executable, "-c", code]
        done = subprocess.run(
            command, cwd=store_folder, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
        assert not re.search("Error|Warning|Traceback", done.stderr), "only hints"
        told.append(done.stdout)
    assert len(told) == 10
    look, why, work, redrive, back, replay, verify = (told[n] for n in (1, 2, 3, 4, 6, 7, 9))
    assert "sofa" in look
    assert "it does not match" in why
    assert "done=2, failed=1" in work
    assert "1 message ready again" in redrive
    assert "rejected" in back
    assert "1 put into the queue" in replay
    assert "clean: " in verify
