"""Effects: the changes that a commit consists of, and the entries of the journal (docs/rfcs/0003-journal.md)."""
