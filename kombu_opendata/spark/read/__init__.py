"""Reading a store's tables: their columns and bounds, and the scans that executors run."""
