"""Reading of a store's tables: their columns and bounds, and the scans of executors."""
