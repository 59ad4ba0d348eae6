"""How effects become durable: journal, checkpoints, recovery."""
