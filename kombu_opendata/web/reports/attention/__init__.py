"""Findings: sentences about problems, each with a link to the view where the problem can be fixed."""
