"""The tools of the child."""
