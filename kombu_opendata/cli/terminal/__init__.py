"""What commands show on a terminal: texts, tables, JSON, progress."""
