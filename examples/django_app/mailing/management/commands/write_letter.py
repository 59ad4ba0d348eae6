"""``manage.py write_letter NAME``"""

from typing import Any

from celery.utils import uuid
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from mailing.models import Letter
from mailing.tasks import send


class Command(BaseCommand):
    """Writes a letter and has a worker send it."""

    help = "Write a letter to somebody; a worker sends it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("to")
        parser.add_argument("--wait", action="store_true", help="wait until it is sent, for a minute at most")

    def handle(self, *_args: Any, **options: Any) -> None:
        task_id = uuid()
        with transaction.atomic():
            letter = Letter.objects.create(to=options["to"])
            # Send the task after the commit: otherwise a fast worker would not find the letter.
            send.apply_async_on_commit((letter.id,), task_id=task_id)
        self.stdout.write(f"letter {letter.id} to {letter.to} is written")
        if options["wait"]:
            self.stdout.write(send.AsyncResult(task_id).get(timeout=60))
