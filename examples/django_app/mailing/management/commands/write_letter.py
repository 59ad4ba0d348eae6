"""``manage.py write_letter NAME``"""

from typing import Any

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

    @transaction.atomic
    def write(self, to: str) -> Any:
        letter = Letter.objects.create(to=to)
        # Send the task after the commit: otherwise a fast worker would not find the letter.
        transaction.on_commit(lambda: self.sent.append(send.delay(letter.id)))
        return letter

    def handle(self, *_args: Any, **options: Any) -> None:
        self.sent: list[Any] = []
        letter = self.write(options["to"])
        self.stdout.write(f"letter {letter.id} to {letter.to} is written")
        if options["wait"]:
            self.stdout.write(self.sent[0].get(timeout=60))
