"""Pages that keep themselves up to date."""
