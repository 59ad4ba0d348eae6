"""Records of a store, as of the time when it was opened."""
