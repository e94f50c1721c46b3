"""Files as a transaction."""
