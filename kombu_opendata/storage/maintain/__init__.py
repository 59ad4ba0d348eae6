"""Background work of the engine: retention, garbage collection, the size limit, routing cursors."""
