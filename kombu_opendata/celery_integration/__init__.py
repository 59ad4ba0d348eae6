"""What Celery needs beyond a Kombu transport."""
