"""What a commit consists of: effects, the entries of the journal (docs/rfcs/0003-journal.md)."""
