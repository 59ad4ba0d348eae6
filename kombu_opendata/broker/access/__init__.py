"""Access control: the users file, users, their rights, roles and limits (docs/permissions.md)."""
