"""Tasks that are published in transactions which commit or roll back."""

from contextlib import suppress
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import TextChoices
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from kombu.exceptions import OperationalError
from mailing.models import Letter

from kombu_opendata import QueueClient

from .tasks import note


class RolledBackError(Exception):
    """Ends a transaction."""


def publish_in_transactions(url: str, ledger: str) -> dict[str, int]:
    """Return the number of messages in the queue after each step; no worker runs."""
    lengths = {}
    with QueueClient(url) as client:
        client.create("celery")

        def count(step: str) -> None:
            lengths[step] = client.metrics("celery").length

        note.delay_on_commit(ledger, "without a transaction")
        count("without a transaction")

        with transaction.atomic():
            note.delay_on_commit(ledger, "committed")
            count("before the commit")
        count("after the commit")

        with suppress(RolledBackError), transaction.atomic():
            Letter.objects.create(to="rolled back")
            note.delay_on_commit(ledger, "rolled back")
            note.apply_async_on_commit((ledger, "rolled back, with options"), countdown=1)
            raise RolledBackError
        count("after a rollback")

        with transaction.atomic():
            note.delay_on_commit(ledger, "outer")
            with suppress(RolledBackError), transaction.atomic():
                note.delay_on_commit(ledger, "inner, rolled back")
                raise RolledBackError
            with transaction.atomic():
                note.delay_on_commit(ledger, "inner")
            count("before the outer commit")
        count("after the outer commit")

        with suppress(RolledBackError), transaction.atomic():
            with transaction.atomic():
                note.delay_on_commit(ledger, "inner of a rollback")
            raise RolledBackError
        count("after the outer rollback")

        with suppress(IntegrityError), transaction.atomic():
            note.delay_on_commit(ledger, "refused by the database")
            Letter.objects.create(id=1, to="Ada")
            Letter.objects.create(id=1, to="Ada again")
        count("after an error of the database")

        with suppress(RolledBackError), transaction.atomic():
            note.delay(ledger, "not on commit")
            raise RolledBackError
        count("delay alone, rolled back")
    return lengths


class Queues(TextChoices):
    """Names as Django's models have them."""

    URGENT = "urgent"


def publish_texts_of_django(url: str, ledger: str) -> dict[str, Any]:
    """Return the message of a task whose texts are of Django's types."""
    text = mark_safe("<b>sent</b>")
    headers = {"safe": text, "choice": Queues.URGENT, "lazy": gettext_lazy("sent"), text: 1}
    note.apply_async((ledger, text), {}, task_id=mark_safe("an-id"), queue=Queues.URGENT, shadow=text, headers=headers)
    note.apply_async((ledger, gettext_lazy("sent")), queue=mark_safe("urgent"))
    with QueueClient(url) as client:
        first, second = client.peek(Queues.URGENT, 10)
        client.send(mark_safe("urgent"), {"lazy": gettext_lazy("sent"), "safe": text})
    wanted = ("safe", "choice", "lazy", "<b>sent</b>", "id", "shadow")
    return {"headers": [first.headers[name] for name in wanted], "arguments": [first.body[0][1], second.body[0][1]]}


def publish_without_a_broker() -> dict[str, Any]:
    """Return the error of the publish after a commit, and the number of committed letters."""
    error = ""
    try:
        with transaction.atomic():
            Letter.objects.create(to="committed")
            note.delay_on_commit("", "")
    except OperationalError as exc:
        error = type(exc).__name__
    return {"error": error, "letters": Letter.objects.filter(to="committed").count()}
