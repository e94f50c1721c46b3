"""Files as a transaction: a private view of a directory, then commit or discard.

    open_view ─▶ (a sandbox works in the view) ─▶ read_changes ─▶ select_changes
                                                                    ├─▶ write_patch
                                                                    └─▶ commit_changes ─▶ the tree

Everything here runs in the parent, after everything in the sandbox is dead, and treats what it
finds in the view as hostile data: it walks by directory descriptors, follows no symbolic link and
runs nothing. Who mounts the view, and what the rules allow, is decided elsewhere.
"""
