"""Which queues Celery makes for itself."""

from __future__ import annotations

import pytest

from kombu_opendata.control_queues import is_control_queue


@pytest.mark.parametrize(
    "name",
    [
        "celeryev.b4c1d6fa-1c0e-4b5e-8f38-6d1b8d5a1c60",
        "worker@host.celery.pidbox",
        "celery.pidbox",
        "0d2d3b0a-5f0b-3f0c-9c2f-0a4a1f4b2c11.reply.celery.pidbox",
        "b4c1d6fa-1c0e-4b5e-8f38-6d1b8d5a1c60",
    ],
)
def test_control_queues(name: str) -> None:
    assert is_control_queue(name)


@pytest.mark.parametrize("name", ["celery", "celeryev", "my.pidbox.mail", "mail", ""])
def test_queues_of_people(name: str) -> None:
    assert not is_control_queue(name)
