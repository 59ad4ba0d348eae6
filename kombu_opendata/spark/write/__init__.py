"""Sending rows as tasks: what callers may ask for, and Spark's writers."""
