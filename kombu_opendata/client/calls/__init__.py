"""Names of version 0.1 that are elsewhere now; they raise a DeprecationWarning until version 0.3."""
