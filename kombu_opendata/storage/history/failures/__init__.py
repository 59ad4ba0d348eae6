"""Failures: the messages of failed lists, and acknowledged attempts whose tasks failed; in pages and in groups."""
