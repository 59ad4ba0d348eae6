"""Broker: sessions, channels, consumers and delivery, on asyncio; one process owns a store."""
