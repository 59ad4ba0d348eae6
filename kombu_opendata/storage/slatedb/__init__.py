"""The binding to SlateDB: its fast calls, its reader and writer, and object stores."""
