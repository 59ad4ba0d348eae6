"""Queries of the history: filters, candidates, pages, counts."""
