"""Terminal output of commands: texts, tables, JSON, progress."""
