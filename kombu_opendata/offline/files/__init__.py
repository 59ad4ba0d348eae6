"""The files of a store, read without SlateDB and without its broker."""
