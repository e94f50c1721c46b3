"""What can go wrong, as one tree. Each error carries its exit code and, where there is one, a hint.

    ForkrunError            1    an internal error
    ├─ UsageError           2    flags and arguments that cannot be meant
    ├─ InputError          65    a snapshot, script, schema or jobs file that is not valid
    ├─ ConfigurationError  78    no credential for the model, or configuration that is not valid
    ├─ SandboxError       125    the confinement asked for cannot be had here
    ├─ ChannelError         1    the other side of the channel broke the protocol
    ├─ WorkspaceError       1    the files of a run cannot be copied, read or committed
    └─ ModelError          11    the model refused the request: trying again does not help
       ├─ ModelUnavailable 10    trying again later can help
       └─ ContextExceeded  12    the conversation no longer fits into the model's window

How a *run* ended is not an error but a value: `Result.stop_reason`.
"""

from __future__ import annotations

from typing import ClassVar


class ForkrunError(Exception):
    """Root of every error of forkrun.

    `hint` is one sentence that says what to do about it, or None; `exit_code` is what the command
    line ends with.

    >>> try:
    ...     forkrun.run_sync("")
    ... except forkrun.ForkrunError as error:
    ...     print(error, error.exit_code, error.hint, sep=" | ")
    the prompt is empty | 2 | say what the subagent should do
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(ForkrunError):
    """Flags or arguments that cannot be meant.

    >>> forkrun.run_sync("Look around", tools=["knife"], model="script:replies.jsonl")
    Traceback (most recent call last):
    forkrun.errors.UsageError: unknown tool: knife
    """

    exit_code = 2


class InputError(ForkrunError):
    """Input that is not valid; the message says which file and where in it.

    >>> forkrun.Policy.parse(allow=["bash("])
    Traceback (most recent call last):
    forkrun.errors.InputError: allow rule 1 is not valid: ...
    """

    exit_code = 65


class ConfigurationError(ForkrunError):
    """No credential for the model, or configuration that is not valid.

    >>> forkrun.run_sync("Look around", model="claude-haiku-4-5", environ={"HOME": "/nowhere"})
    Traceback (most recent call last):
    forkrun.errors.ConfigurationError: ...
    """

    exit_code = 78


class SandboxError(ForkrunError):
    """The confinement asked for cannot be had here; nothing was run.

    A run gives it as `Result.stop_reason` "sandbox_unavailable" instead of raising it.

    >>> forkrun.SandboxError("no user namespaces").exit_code
    125
    """

    exit_code = 125


class ChannelError(ForkrunError):
    """The other side of the channel broke the protocol or is gone.

    A run gives it as `Result.stop_reason` "crashed" instead of raising it.

    >>> forkrun.ChannelError("the child closed the channel").exit_code
    1
    """


class WorkspaceError(ForkrunError):
    """The files of a run cannot be copied, read or committed; the workspace is as it was."""


class ModelError(ForkrunError):
    """The model refused the request (400, 401, 403, 404, 413): trying again does not help.

    `status` is the HTTP status, or None where there was none; `kind` the API's own name of the
    error ("overloaded_error"); `request_id` what the provider calls the request. A `Model` of your
    own raises it; a run then ends with `Result.stop_reason` "model_error".

    >>> forkrun.ModelError("bad request", status=400, kind="invalid_request_error").status
    400
    """

    exit_code = 11

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        status: int | None = None,
        kind: str = "api_error",
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.kind = kind
        self.request_id = request_id


class ModelUnavailable(ModelError):
    """The model could not answer now (408, 409, 429, 5xx, 529, connection, cut stream).

    `retry_after_s` is the wait that the server asked for, in seconds, or None. A run whose retries
    are used up ends with `Result.stop_reason` "model_unavailable".

    >>> forkrun.ModelUnavailable("overloaded", status=529, retry_after_s=2.5).retry_after_s
    2.5
    """

    exit_code = 10

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        status: int | None = None,
        kind: str = "connection_error",
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint, status=status, kind=kind, request_id=request_id)
        self.retry_after_s = retry_after_s


class ContextExceeded(ModelError):
    """The conversation no longer fits into the model's context window.

    A run ends with `Result.stop_reason` "context_exceeded" for it.

    >>> issubclass(forkrun.ContextExceeded, forkrun.ModelError)
    True
    """

    exit_code = 12
