"""Runs jobs, one or many: owns what they share, which is the connections of the models."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Unpack
from weakref import WeakSet

from forkrun.confinement import Confinement
from forkrun.environment import worker_environment
from forkrun.events import Emit, Event
from forkrun.gate import CanUseTool
from forkrun.hooks import Hooks
from forkrun.job import Job, check, job_from, workspace_path
from forkrun.launcher import Launcher, Start
from forkrun.models import open_model
from forkrun.models.base import Model
from forkrun.models.pace import MAX_REQUESTS, PacedModel
from forkrun.opening import check_fork
from forkrun.result import Result
from forkrun.running import Run
from forkrun.setup import Setup
from forkrun.starting import Early
from forkrun.tracing import host_tracer
from forkrun.transaction import tidy

if TYPE_CHECKING:
    from forkrun.models.connections import Connections
    from forkrun.options import JobOptions, RunOptions
    from forkrun.snapshot.freeze import Snapshot
    from forkrun.structured.shape import Shape
    from forkrun.workspace.commit import Recovery

DEFAULT_MODEL = "claude-sonnet-5-5"


class Runner:
    """Owns what many runs share, which is the connections of the models, and the runs themselves.

    An async context manager: leaving the block ends the runs that still go on. `model` is a name
    ("offline", "script:FILE", a Claude model id) or a `Model`, which its owner closes; a job may
    name another. `client` is a client of the `anthropic` package (sync or async, also of Bedrock,
    Vertex or Foundry), which then sends what goes to a Claude model. `hooks` are asked in every
    run. `tracer_provider` is one of OpenTelemetry; without it, that of a host that has imported
    OpenTelemetry. `environ` is where credentials and the search path are read from, None for
    `os.environ`; it never reaches a child. `start`: "warm" forks each child from a process that has
    imported what they need, "exec" gives each a fresh interpreter. `max_requests` is how many
    requests may be on their way to a model at once; where its server asks to wait, all runs do.
    `early` is a fresh worker that has been started already; `connections` are those to the server
    of a Claude model that have been begun already, to be closed by whoever began them.

    >>> async with forkrun.Runner(model="script:replies.jsonl") as runner:
    ...     results = await asyncio.gather(runner.run("Look left"), runner.run("Look right"))
    >>> [result.summary for result in results]
    ['In pyproject.toml.', 'In pyproject.toml.']
    """

    def __init__(
        self,
        *,
        model: str | Model | None = None,
        client: object | None = None,
        hooks: Hooks | None = None,
        tracer_provider: object | None = None,
        environ: Mapping[str, str] | None = None,
        start: Start = "warm",
        max_requests: int = MAX_REQUESTS,
        early: Early | None = None,
        connections: Connections | None = None,
    ) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self._launcher = Launcher(
            environ=worker_environment(self._environ), start=start, early=early
        )
        self._model = model
        self._client = client
        self._connections = connections
        self._hooks = hooks
        self._tracer_provider = tracer_provider
        self._max_requests = max_requests
        self._models: dict[str, Model] = {}
        self._paced: dict[int, PacedModel] = {}  # by the identity of what each of them wraps
        self._confinement = Confinement()
        self._tidied: set[str] = set()
        self._runs: WeakSet[Run] = WeakSet()

    def twin(self) -> Runner:
        """Give another runner of the same settings, not yet entered: for another event loop."""
        return Runner(
            model=self._model,
            hooks=self._hooks,
            tracer_provider=self._tracer_provider,
            environ=self._environ,
            max_requests=self._max_requests,
        )

    async def __aenter__(self) -> Runner:
        self._launcher.warm_up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await asyncio.gather(*(run.end() for run in self._runs))
        finally:
            await self._launcher.__aexit__(kind, error, traceback)
            for model in self._models.values():
                await model.close()
            self._models.clear()
            self._paced.clear()

    async def run(
        self,
        prompt: str | Job,
        *,
        model: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Result:
        """Run one job to its end. Cancelling the awaiting task ends the whole tree.

        Arguments are those of `spawn`. Raises ForkrunError for what cannot be started; how a
        started run ended is in the result.
        """
        in_job = prompt.forks if isinstance(prompt, Job) else None
        if in_job is not None and options.get("snapshot") is None:
            from forkrun.snapshot.freeze import Snapshot

            # A large one takes a second to check.
            options["snapshot"] = await asyncio.to_thread(Snapshot.from_json, in_job)
        return await self.spawn(prompt, model=model, **options).result()

    def spawn(
        self,
        prompt: str | Job,
        *,
        model: str | None = None,
        snapshot: Snapshot | None = None,
        on_event: Emit | None = None,
        can_use_tool: CanUseTool | None = None,
        output_type: type | None = None,
        **options: Unpack[JobOptions],
    ) -> Run:
        """Give the run of a job, checked but not yet started: `async with runner.spawn(…) as run`.

        `options` are the fields of `Job`, which may be given whole instead of a prompt. `snapshot`
        is the request to fork; it may stand in the job as JSON instead. `on_event` is called with
        each event, on the event loop; `can_use_tool` is asked before each call, beside the rules.
        `output_type` is a msgspec Struct, a dataclass or a pydantic model: `structured_output` of
        the result is then an instance of it, or None.
        """
        job = job_from(prompt, {**options, **({"model": model} if model else {})})
        check(job)
        if self._hooks is not None:
            self._hooks.check_outside(workspace_path(job, self._environ))
        if snapshot is None and job.forks is not None:
            from forkrun.snapshot.freeze import Snapshot

            snapshot = Snapshot.from_json(job.forks)
        if snapshot is not None:
            check_fork(job)
        setup = Setup(
            model=self._model_for(job, snapshot),
            environ=self._environ,
            confinement=self._confinement,
            launcher=self._launcher,
            snapshot=snapshot,
            can_use_tool=can_use_tool,
            shape=_shape_of(job, output_type),
            hooks=self._hooks,
            tracer=host_tracer(self._tracer_provider),
        )
        run = Run(job, setup, emit=on_event or _nobody, recovered=self._tidy(job))
        self._runs.add(run)
        return run

    def _tidy(self, job: Job) -> tuple[Recovery, ...]:
        """Make good, once for each workspace, what runs left there that were killed."""
        workspace = workspace_path(job, self._environ)
        if workspace in self._tidied:
            return ()
        self._tidied.add(workspace)
        return tidy(workspace, environ=self._environ, keep_days=job.keep_patch_days)

    def _model_for(self, job: Job, snapshot: Snapshot | None) -> Model:
        """Give the model that answers; that of a fork is its parent's, whatever the default is."""
        of_parent = snapshot.param("model") if snapshot else None
        default = of_parent or self._environ.get("FORKRUN_MODEL") or DEFAULT_MODEL
        wanted = job.model or self._model or default
        if not isinstance(wanted, str):
            return self._at_a_pace(wanted)
        if wanted not in self._models:
            self._models[wanted] = open_model(
                wanted,
                environ=self._environ,
                client=self._client,
                connections=self._connections,
            )
        return self._at_a_pace(self._models[wanted])

    def _at_a_pace(self, model: Model) -> Model:
        """Have all runs that ask this model wait for each other, and for what its server asks."""
        if id(model) not in self._paced:
            self._paced[id(model)] = PacedModel(model, max_requests=self._max_requests)
        return self._paced[id(model)]


def _shape_of(job: Job, output_type: type | None) -> Shape | None:
    if job.json_schema is None and output_type is None:
        return None
    from forkrun.structured.shape import shape_of

    return shape_of(job, output_type=output_type)


def _nobody(event: Event) -> None:
    """Take an event that nobody wants."""
