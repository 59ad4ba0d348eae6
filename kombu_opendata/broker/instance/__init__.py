"""One instance (virtual host): its composition, and the duties that it does by itself."""
