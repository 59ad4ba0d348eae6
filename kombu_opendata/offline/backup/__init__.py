"""Copies of stores that can be restored: see docs/production.md."""
