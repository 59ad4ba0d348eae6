"""Wire protocol between clients and the broker (docs/rfcs/0002-wire-protocol.md)."""
