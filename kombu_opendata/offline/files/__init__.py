"""Files of a store, read without SlateDB and without its broker."""
