"""Operating-system confinement for one process tree; knows nothing of agents.

Two faces: `probe` and `launch` may be imported by a parent; `enter` confines the calling process
for good and is for the child alone. Standard library only.
"""
