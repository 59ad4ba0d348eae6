"""The binding to SlateDB: its fast calls, its reader and writer, object stores."""
