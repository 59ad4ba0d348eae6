"""Durability of effects: journal, checkpoints and recovery."""
