"""A broker does not serve a folder that other hosts may use as well, and says what to do instead."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from kombu_opendata import QueueClient
from kombu_opendata.cli.root import main

from ...support.disks import remote_disk, small_disk
from ...support.served import COMMAND


@pytest.mark.parametrize("deep", ["", "/queue/new"])
def test_a_folder_on_another_host(deep: str, tmp_path: Path) -> None:
    with remote_disk("fuse.sshfs") as disk:
        listen = f"unix:{tmp_path}/broker.sock"
        arguments = [str(COMMAND), "broker", "--store", f"file://{disk}{deep}", "--listen", listen]
        ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 1
        assert "fuse.sshfs, which other hosts can mount, too" in ended.stderr
        assert "or a bucket (--store s3://bucket/prefix)" in ended.stderr
        told = CliRunner().invoke(main, ["config", "check", "--store", f"file://{disk}{deep}", "--listen", listen])
        assert (told.exit_code, "fuse.sshfs, which other hosts can mount, too" in told.stderr) == (1, True)


def test_a_folder_in_memory_is_served_with_a_warning() -> None:
    with small_disk("size=200m", "mode=0700") as disk:
        with QueueClient(f"opendata://{disk}/queue") as client:
            client.create("q")
            assert "lost when the machine restarts" in (disk / "queue" / "broker.log").read_text()
            client.delete_queue("q")
        subprocess.run([str(COMMAND), "broker", "stop", f"{disk}/queue"], check=True, capture_output=True, timeout=60)
