"""Verbs that operate a broker: its options, users, clients and instances; its store and backups."""
