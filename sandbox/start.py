"""Start a fresh, small interpreter of this package: isolated, without `site`, by its real path.

The package is handed over by its place on disk, so that it is found wherever it was imported from
(a wheel, an editable install, a checkout in which its folder has another name).
"""

from __future__ import annotations

import os
import sys

_CODE = """
import sys, importlib.util as u
directory, module, function = sys.argv[1:4]
spec = u.spec_from_file_location(
    "forkrun_sandbox", directory + "/__init__.py", submodule_search_locations=[directory])
package = sys.modules["forkrun_sandbox"] = u.module_from_spec(spec)
spec.loader.exec_module(package)
sys.argv[:4] = ["forkrun_sandbox"]
getattr(importlib_import("forkrun_sandbox." + module), function)()
""".replace("importlib_import", "__import__('importlib').import_module")


def interpreter(module: str, function: str, *arguments: str) -> list[str]:
    """Give the argv that runs `function()` of a module of this package, with `sys.argv[1:]` set."""
    directory = os.path.dirname(os.path.abspath(__file__))
    return [sys.executable, "-I", "-S", "-c", _CODE, directory, module, function, *arguments]
