"""Spark: rows of a DataFrame as Celery tasks. Needs the extra ``spark`` where the session runs, nothing here to import."""

from .partitions import PartitionSender

__all__ = ["PartitionSender"]
