"""Sending of rows as tasks: arguments of callers, and Spark's writers."""
