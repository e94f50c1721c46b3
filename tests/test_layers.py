"""Who may import whom, read from the source of every module and held by these tables.

shared  ◀── child side      runs confined; starts in milliseconds
   ▲
   └─────── parent side     holds the key, the network and the user's files
"""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"forkrun": ROOT / "forkrun", "forkrun_sandbox": ROOT / "sandbox"}

# A name stands for the module and all below it. What is on neither list is the parent's.
SHARED = (
    "forkrun.catalog",
    "forkrun.channel",
    "forkrun.errors",
    "forkrun.ignoring",
    "forkrun.limits",
    "forkrun.mcp.content",
    "forkrun.policy",
    "forkrun.protocol",
    "forkrun.text",
    "forkrun.wildcards",
)
CHILD = ("forkrun.loop", "forkrun.tools", "forkrun.worker", "forkrun.zygote_main")

SANDBOX_OF = {
    "shared": ("forkrun_sandbox.spec", "forkrun_sandbox.fault"),
    "child": (
        "forkrun_sandbox.spec",
        "forkrun_sandbox.fault",
        "forkrun_sandbox.enter",
        "forkrun_sandbox.guard",
    ),
    "parent": (
        "forkrun_sandbox.spec",
        "forkrun_sandbox.fault",
        "forkrun_sandbox.probe",
        "forkrun_sandbox.bwrap",
        "forkrun_sandbox.gitdirs",
        "forkrun_sandbox.launch",
        "forkrun_sandbox.identity",
        "forkrun_sandbox.toolchains",
    ),
}
"""The faces of the sandbox that each side may name; the package itself does nothing."""

THIRD_PARTY = {
    "anyio": ("forkrun.mcp",),
    "anthropic": ("forkrun.models.sdk_road",),
    "genai_prices": ("forkrun.models.prices",),
    "jsonschema_rs": ("forkrun.structured.shape",),
    "httpx2": ("forkrun.mcp.remote", "forkrun.models.sdk_road"),
    "mcp": ("forkrun.mcp",),
    "msgspec": ("forkrun",),
    "opentelemetry": ("forkrun.tracing",),
    "psutil": ("forkrun.elsewhere",),
    "rich": ("forkrun.cli.progress",),
    "tree_sitter": ("forkrun.policy.shell",),
    "tree_sitter_bash": ("forkrun.policy.shell",),
    "yaml": ("forkrun.agents.matter",),
}
"""Where each package that is not ours may be imported. All but the first only inside a function."""
AT_THE_TOP = ("msgspec",)

NEVER_IN_THE_CHILD = {"anthropic", "anyio", "asyncio", "psutil", "ssl"} | {
    name for name in THIRD_PARTY if name not in AT_THE_TOP
}


@dataclass(frozen=True)
class Import:
    """One import: of which module, on which line, and whether when the module itself is imported."""

    name: str
    line: int
    at_once: bool


def modules() -> dict[str, Path]:
    """Give every module of both packages: its name and its file."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *(p for p in parts if p != "__init__")))] = path
    return found


MODULES = modules()


def imports(module: str) -> list[Import]:
    """Give what a module imports anywhere in it, `from package import module` as the module."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    return list(imports_in(tree, module, True))


def imports_in(node: ast.AST, module: str, at_once: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, at_once)
        elif isinstance(child, ast.ImportFrom):
            origin = absolute(child, module)
            for alias in child.names:
                inner = f"{origin}.{alias.name}"
                yield Import(inner if inner in MODULES else origin, child.lineno, at_once)
        else:
            is_later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            is_for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            yield from imports_in(child, module, at_once and not is_later and not is_for_types)


def absolute(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    is_package = MODULES[module].name == "__init__.py"
    parts = module.split(".")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def under(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def side(module: str) -> str:
    if under(module, SHARED):
        return "shared"
    return "child" if under(module, CHILD) else "parent"


def agent_modules() -> list[str]:
    """Every module of `forkrun` but the package itself, whose public names resolve when asked."""
    return [name for name in MODULES if name.startswith("forkrun.")]


def where(module: str, found: Import) -> str:
    return f"{MODULES[module].relative_to(ROOT)}:{found.line} imports {found.name}"


def test_a_side_imports_itself_and_what_is_shared() -> None:
    """Child side and parent side never import each other, and what is shared imports neither."""
    wrong = [
        f"{where(module, found)} ({side(module)} imports {side(found.name)})"
        for module in agent_modules()
        for found in imports(module)
        if found.name.startswith("forkrun.") and side(found.name) not in {"shared", side(module)}
    ]
    assert not wrong


def test_a_side_names_its_own_face_of_the_sandbox() -> None:
    """Only the child names `enter`, only the parent `probe` and `launch`."""
    wrong = [
        where(module, found)
        for module in agent_modules()
        for found in imports(module)
        if found.name.startswith("forkrun_sandbox.")
        and not under(found.name, SANDBOX_OF[side(module)])
    ]
    assert not wrong


def test_the_sandbox_needs_the_standard_library_alone() -> None:
    """`forkrun_sandbox` imports itself and the standard library, and knows nothing of agents."""
    wrong = [
        where(module, found)
        for module in MODULES
        if under(module, ("forkrun_sandbox",))
        for found in imports(module)
        if not under(found.name, ("forkrun_sandbox", *sys.stdlib_module_names))
    ]
    assert not wrong


def test_third_party_packages_stand_where_the_table_says() -> None:
    """A package that is not ours is imported by the modules named for it, and inside a function
    unless every start can afford it."""
    wrong = []
    for module in MODULES:
        for found in imports(module):
            root = found.name.split(".")[0]
            if root in FOLDERS or root in sys.stdlib_module_names:
                continue
            if not under(module, THIRD_PARTY.get(root, ())):
                wrong.append(where(module, found))
            elif found.at_once and root not in AT_THE_TOP:
                wrong.append(f"{where(module, found)} when it is itself imported")
    assert not wrong


def test_no_imports_go_in_circles() -> None:
    """Modules can be put in an order in which each imports earlier ones only."""
    graph = {
        name: {f.name for f in imports(name) if f.at_once and f.name in MODULES and f.name != name}
        for name in MODULES
    }
    list(graphlib.TopologicalSorter(graph).static_order())


def test_the_child_imports_nothing_heavy() -> None:
    """The worker, imported as the child imports it, brings in none of the parent's packages."""
    paths = [path for path in sys.path if path]
    code = (
        f"import sys; sys.path[:0] = {paths!r}; import forkrun.worker;"
        f"print(*sorted({NEVER_IN_THE_CHILD!r} & set(sys.modules)))"
    )
    argv = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def test_the_tables_are_up_to_date() -> None:
    """No table names a module that is gone."""
    named = {*SHARED, *CHILD, *(name for names in THIRD_PARTY.values() for name in names)}
    assert named <= set(MODULES)
