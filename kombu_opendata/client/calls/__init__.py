"""Calls that a client makes over a connection, one module for each group of calls."""
