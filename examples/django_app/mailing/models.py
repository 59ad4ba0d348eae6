"""Letters: those to be sent, and those that were sent."""

from django.db import models


class Letter(models.Model):
    """A letter; ``sent_at`` is empty until a worker has sent it."""

    to = models.CharField(max_length=100)
    sent_at = models.DateTimeField(null=True)
