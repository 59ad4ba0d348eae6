"""Credentials of a bucket from files, which a broker and the verbs about stores read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kombu_opendata import QueueClient, errors
from kombu_opendata.bucket_credentials import read_credential_files

from ...support.certificates import write_private
from ...support.processes import Children
from ...support.s3 import BUCKET, S3
from ...support.served import COMMAND, ServedBroker

SECRET = "a-secret-that-nothing-shows"


@pytest.fixture
def s3(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3:
    """A server whose credentials are in files."""
    for name, text in (("AWS_ACCESS_KEY_ID", "id-of-a-file\n"), ("AWS_SECRET_ACCESS_KEY", f"{SECRET}\n")):
        path = tmp_path / name
        write_private(path, text.encode())
        monkeypatch.delenv(name)
        monkeypatch.setenv(f"{name}_FILE", str(path))
    return s3


def test_a_broker_reads_them(s3: S3, tmp_path: Path, started: Children) -> None:
    store = f"s3://{BUCKET}/by-files"
    broker = ServedBroker(tmp_path, "--store", store, "--listen", "tcp:127.0.0.1:0")
    started.add(broker)
    with QueueClient(f"opendata://127.0.0.1:{broker.port}") as client:
        client.create("q")
        client.send("q", "kept")
    environment, command = (Path(f"/proc/{broker.pid}/{name}").read_text() for name in ("environ", "cmdline"))
    assert broker.terminate() == 0
    assert SECRET not in environment + command + broker.log.read_text()
    done = subprocess.run([COMMAND, "store", "stats", store], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize(
    ("data", "mode", "said"),
    [
        (b"x", 0o644, r"\(mode 644\): chmod o-rwx"),
        (b"\xff\n", 0o600, "is not text: write the value alone into it"),
        (None, 0, "can't be read: No such file or directory"),
    ],
)
def test_a_file_that_can_not_be_used(tmp_path: Path, data: bytes | None, mode: int, said: str) -> None:
    path = tmp_path / "AWS_SECRET_ACCESS_KEY"
    path.unlink()
    if data is not None:
        path.write_bytes(data)
        path.chmod(mode)
    with pytest.raises(errors.StoreError, match=said) as caught:
        read_credential_files()
    assert caught.value.path == str(path)
