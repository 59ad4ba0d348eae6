"""Effects: the changes that commits consist of, the entries of the journal (docs/rfcs/0003-journal.md)."""
