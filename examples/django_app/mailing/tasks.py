"""Tasks of the app; ``autodiscover_tasks`` finds them here."""

from celery import shared_task
from django.utils import timezone

from .models import Letter


@shared_task
def send(letter_id: int) -> str:
    """Send a letter once: a second run has nothing to do."""
    changed = Letter.objects.filter(id=letter_id, sent_at=None).update(sent_at=timezone.now())
    return "sent" if changed else "was sent before"
