"""Queries of the history: candidates, pages, counts."""
