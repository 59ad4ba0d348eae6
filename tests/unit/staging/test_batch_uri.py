"""URIs of batches and of messages in them."""

from __future__ import annotations

from kombu_opendata.staging.batch_uri import job_folder, parse_batch_uri, parse_payload_uri


def test_uris_of_payloads() -> None:
    path = f"{job_folder('job')}/1-2-{'a' * 16}.batch"
    assert parse_payload_uri(f"batch:{path}:8:300:0000002a") == (path, 8, 300, 42)
    assert parse_batch_uri(f"batch:{path}") == path
    assert parse_payload_uri(f"batch:{path}") is None
    assert parse_payload_uri(f"batch:{path}:-8:300:0000002a") is None
    assert parse_payload_uri(f"batch:{path}:{10**19}:300:0000002a") is None
