"""The tools that a child may have: names, descriptions and the structs of their inputs.

Shared by both sides: the parent sends the definitions to the model, the child decodes the inputs.
The input structs are the one source of both; keys that they do not name are ignored. A fork shows
the model its parent's tools instead, which can do a little more: calls of those reach the child in
the wider forms at the end.
"""

# Annotations are no texts here: msgspec would evaluate each of them, which takes a millisecond.
import functools
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class ToolInput(msgspec.Struct, frozen=True, kw_only=True):
    """The root of all tool inputs."""


class BashInput(ToolInput, frozen=True, kw_only=True):
    """Run a command in a fresh bash in the workspace and return what it prints.

    Each call is a new shell: the working directory and variables do not carry over. There is no
    terminal and no standard input. Output is cut in the middle when it is long. Processes that the
    command leaves in the background are ended when the call returns.
    """

    command: Annotated[str, Meta(description="The command line, as for `bash -c`.")]
    timeout: Annotated[
        float | None,
        Meta(description="Seconds after which the command and all that it started are killed."),
    ] = None


class ReadFileInput(ToolInput, frozen=True, kw_only=True):
    """Read a file of the workspace, with line numbers. Long files are read in parts."""

    file_path: Annotated[str, Meta(description="Path, relative to the workspace or absolute.")]
    offset: Annotated[int | None, Meta(description="First line to read, counted from 1.")] = None
    limit: Annotated[int | None, Meta(description="How many lines to read.")] = None


class WriteFileInput(ToolInput, frozen=True, kw_only=True):
    """Write a file of the workspace: exactly this content, nothing added.

    Directories that are missing are made. A file that changed since it was read is not overwritten.
    """

    file_path: Annotated[str, Meta(description="Path, relative to the workspace or absolute.")]
    content: Annotated[str, Meta(description="The whole new content of the file.")]


class EditFileInput(ToolInput, frozen=True, kw_only=True):
    """Replace a piece of text in a file of the workspace, literally.

    `old_string` must occur exactly once, unless `replace_all` is true.
    """

    file_path: Annotated[str, Meta(description="Path, relative to the workspace or absolute.")]
    old_string: Annotated[str, Meta(description="The text to replace, as it stands in the file.")]
    new_string: Annotated[str, Meta(description="The text to put in its place; may be empty.")]
    replace_all: Annotated[bool, Meta(description="Replace every occurrence.")] = False


class GlobInput(ToolInput, frozen=True, kw_only=True):
    """List the files of the workspace whose path matches a pattern, newest first.

    What git ignores is left out.
    """

    pattern: Annotated[str, Meta(description="A glob such as `**/*.py`, or a path.")]
    path: Annotated[str | None, Meta(description="The directory to look in.")] = None


class GrepInput(ToolInput, frozen=True, kw_only=True):
    """Search the files of the workspace for a regular expression.

    Prints path, line number and line. What git ignores and binary files are left out.
    """

    pattern: Annotated[str, Meta(description="A regular expression.")]
    path: Annotated[str | None, Meta(description="The file or directory to search in.")] = None
    glob: Annotated[str | None, Meta(description="Only files that match, such as `*.py`.")] = None


class ReadCall(ReadFileInput, frozen=True, kw_only=True):
    """A `read_file` as a fork may make it: `levels` lists a directory, so many levels deep."""

    levels: Annotated[int, Meta(ge=1, le=5)] | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One of several edits: a replacement, or text put after a line (0: before the first)."""

    old_string: str = ""
    new_string: str
    replace_all: bool = False
    after_line: Annotated[int, Meta(ge=0)] | None = None


class EditsCall(ToolInput, frozen=True, kw_only=True):
    """An `edit_file` as a fork may make it: all of these edits in order, or none of them."""

    file_path: str
    edits: Annotated[tuple[Change, ...], Meta(min_length=1)]


class GrepCall(GrepInput, frozen=True, kw_only=True):
    """A `grep` as a fork may make it: what to give of the matches, and how many rows of it."""

    output: Literal["lines", "files", "counts"] = "lines"
    ignore_case: bool = False
    before: Annotated[int, Meta(ge=0)] = 0
    after: Annotated[int, Meta(ge=0)] = 0
    skip: Annotated[int, Meta(ge=0)] = 0
    rows: Annotated[int, Meta(ge=0)] | None = None


INPUTS: dict[str, type[ToolInput]] = {
    "bash": BashInput,
    "read_file": ReadFileInput,
    "write_file": WriteFileInput,
    "edit_file": EditFileInput,
    "glob": GlobInput,
    "grep": GrepInput,
}
FORMS: dict[str, type[ToolInput]] = INPUTS | {"read_file": ReadCall, "grep": GrepCall}
"""What the child decodes; of `edit_file`, an `EditsCall` where the input has `edits`."""

READERS = frozenset({"read_file", "glob", "grep"})
WRITERS = frozenset({"write_file", "edit_file"})


def definitions(names: Iterable[str]) -> list[dict[str, Any]]:
    """Give the definitions of these tools as the Messages API takes them, in the order given."""
    return [_definition(name) for name in names]


@functools.cache
def _definition(name: str) -> dict[str, Any]:
    schema = msgspec.json.schema(INPUTS[name])
    definition = schema["$defs"][INPUTS[name].__name__]
    return {
        "name": name,
        "description": _unfold(definition.pop("description")),
        "input_schema": {k: v for k, v in definition.items() if k != "title"},
    }


def _unfold(docstring: str) -> str:
    paragraphs = docstring.split("\n\n")
    return "\n\n".join(" ".join(p.split()) for p in paragraphs)
