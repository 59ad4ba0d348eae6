"""Spark: rows of a DataFrame as Celery tasks. Where the session runs, it needs the extra ``spark``."""

from .partitions import PartitionSender

__all__ = ["PartitionSender"]
