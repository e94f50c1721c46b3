"""The tools of the child: bash, read_file, write_file, edit_file, glob, grep.

`Toolbox` is all that a loop needs; each tool is imported when it is first called.
"""

from forkrun.tools.toolbox import Judge, Toolbox, allow_everything

__all__ = ["Judge", "Toolbox", "allow_everything"]
