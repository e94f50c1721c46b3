"""The models that a run can be given by name."""
