"""Spark: rows of a DataFrame as Celery tasks. Needs the extra ``spark``."""
