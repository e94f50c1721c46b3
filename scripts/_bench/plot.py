"""Draw tables."""
