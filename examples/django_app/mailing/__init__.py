"""Letters, sent by a task."""
