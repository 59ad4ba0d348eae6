"""One instance (virtual host): its composition and its background work."""
