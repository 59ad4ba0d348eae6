"""What the engine does in the background: retention, collection of garbage, routing cursors."""
