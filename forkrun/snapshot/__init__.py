"""The parent's conversation, frozen, repaired and extended."""
