"""Background work of the engine: retention, collection of garbage, the size limit, routing cursors."""
