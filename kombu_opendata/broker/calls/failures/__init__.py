"""The calls about failures, and what a bulk of them does."""
