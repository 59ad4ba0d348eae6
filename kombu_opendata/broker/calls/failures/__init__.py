"""The calls about failures, and the bulk work on them."""
