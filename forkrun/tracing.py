"""Spans of runs for OpenTelemetry, by its conventions for generative AI.

    invoke_agent LABEL              a run; its parent is the caller's span, or TRACEPARENT
    ├─ chat MODEL                   one reply, retries included
    ├─ execute_tool bash            one call of a tool
    └─ execute_tool task            a call that starts a run …
       └─ invoke_agent LABEL        … which stands below it

Nothing of OpenTelemetry is imported unless the host has imported it or hands in a provider, or (on
the command line) the environment names an exporter. The names of attributes are written here, after
open-telemetry/semantic-conventions-genai at v0.1.0: the constants on the registry are deprecated.
No prompt, no reply and no input of a tool is put into a span.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from forkrun.models.base import Reply, Usage
from forkrun.protocol import ToolCall, ToolResult
from forkrun.result import Result

NAME = "forkrun"
SEND_S = 3.0
"""How long the end of a command may wait for an exporter; OTEL_EXPORTER_OTLP_TIMEOUT overrides."""
_TRACEPARENT = r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
_TIMEOUTS = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
_EXPORTERS = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)


def host_tracer(provider: Any = None) -> Any:
    """Give the tracer of this provider, else of the host's, if it uses OpenTelemetry at all."""
    if provider is not None:
        return provider.get_tracer(NAME)
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    return trace.get_tracer(NAME)


@contextlib.contextmanager
def provider_from(environ: Mapping[str, str]) -> Iterator[tuple[Any, str | None]]:
    """Open the provider that the environment asks for, as the SDK's specification says (None: it
    asks for none), with a word for people where it cannot be had. What it holds is sent at the end.
    """
    if not wants_export(environ):
        yield None, None
        return
    try:
        provider = _provider(environ)
    except ImportError as error:
        yield None, f"no traces: {error.name} is not installed (the extra otel of forkrun-agent)"
        return
    try:
        yield provider, None
    finally:
        provider.shutdown()


def wants_export(environ: Mapping[str, str]) -> bool:
    """Whether the environment names an exporter of traces."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(environ.get(name) for name in _EXPORTERS)


def _provider(environ: Mapping[str, str]) -> Any:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    exporter: Any
    if environ.get("OTEL_TRACES_EXPORTER") == "console":
        exporter = ConsoleSpanExporter(out=sys.stderr)
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        own_timeout = any(environ.get(name) for name in _TIMEOUTS)
        exporter = OTLPSpanExporter(timeout=None if own_timeout else SEND_S)
    name = environ.get("OTEL_SERVICE_NAME") or NAME
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class Spans:
    """The spans of one run; without a tracer, nothing but the trace context that goes on."""

    def __init__(
        self, tracer: Any, *, run_id: str, label: str | None, model: str, environ: Mapping[str, str]
    ) -> None:
        self._tracer = tracer
        self._run_id = run_id
        self._label = label or "subagent"
        self._model = model
        self._parent = _carried(environ)
        self._agent: Any = None
        self._below: Any = None  # the context of what stands below the run's own span
        self._open: dict[str, Any] = {}

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """Put the run itself into a span; calls that are open at its end ended with it."""
        if self._tracer is None:
            yield
            return
        from opentelemetry import trace

        parent = None  # the current span of the host
        if not trace.get_current_span().get_span_context().is_valid and self._parent:
            parent = trace.set_span_in_context(_remote(self._parent))
        with self._tracer.start_as_current_span(
            f"invoke_agent {self._label}",
            context=parent,
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": self._label,
                "gen_ai.agent.id": self._run_id,
                **self._of_model(),
            },
        ) as span:
            self._agent, self._below = span, trace.set_span_in_context(span)
            try:
                yield
            finally:
                for call_id in tuple(self._open):
                    self._end_tool(call_id, error="cancelled")

    def ended(self, result: Result) -> None:
        """Say in the run's span how it ended, and what it used itself."""
        if self._agent is None:
            return
        self._agent.set_attributes(
            {**_of_usage(result.own_usage), "forkrun.stop_reason": result.stop_reason}
        )
        if result.stop_reason != "completed":
            _fail(self._agent, result.stop_reason)

    @contextlib.contextmanager
    def chat(self, *, max_tokens: int) -> Iterator[list[Reply]]:
        """Put the wait for a reply into a span; the caller adds the reply to the list."""
        got: list[Reply] = []
        if self._tracer is None:
            yield got
            return
        from opentelemetry.trace import SpanKind

        with self._tracer.start_as_current_span(
            f"chat {self._model}",
            context=self._below,
            kind=SpanKind.CLIENT,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.request.max_tokens": max_tokens,
                **self._of_model(),
            },
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield got
            except BaseException as error:
                _fail(span, getattr(error, "kind", type(error).__name__))
                raise
            for reply in got:
                span.set_attributes(
                    {
                        "gen_ai.response.model": reply.model,
                        "gen_ai.response.finish_reasons": (reply.stop_reason,),
                        **_of_usage(reply.usage),
                    }
                )

    def tool_begins(self, call: ToolCall) -> None:
        """A call has begun to run."""
        if self._tracer is None:
            return
        self._open[call.id] = self._tracer.start_span(
            f"execute_tool {call.name}",
            context=self._below,
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.name,
                "gen_ai.tool.call.id": call.id,
                "gen_ai.tool.type": "function",
            },
        )

    def tool_ends(self, result: ToolResult) -> None:
        """A call has its result."""
        failed = "denied" if result.denied else "tool_error" if result.is_error else None
        self._end_tool(result.id, error=failed)

    @contextlib.contextmanager
    def around(self, call: ToolCall) -> Iterator[None]:
        """Make the span of a call that has begun the current one: what starts here stands below."""
        span = self._open.get(call.id)
        if span is None:
            yield
            return
        from opentelemetry import trace

        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield

    def environ(self) -> dict[str, str]:
        """Give the variables that carry the trace into commands: this run's own span, or what came
        from outside where no span is made here."""
        if self._agent is None:
            return dict(self._parent)
        context = self._agent.get_span_context()
        if not context.is_valid:
            return dict(self._parent)
        carried = {
            "TRACEPARENT": f"00-{context.trace_id:032x}-{context.span_id:016x}"
            f"-{int(context.trace_flags):02x}"
        }
        if state := context.trace_state.to_header():
            carried["TRACESTATE"] = state
        return carried

    def _of_model(self) -> dict[str, str]:
        is_ours = self._model.startswith(("script:", "offline"))
        provider = NAME if is_ours else "anthropic"
        return {"gen_ai.provider.name": provider, "gen_ai.request.model": self._model}

    def _end_tool(self, call_id: str, *, error: str | None) -> None:
        span = self._open.pop(call_id, None)
        if span is None:
            return
        if error is not None:
            _fail(span, error)
        span.end()


def _carried(environ: Mapping[str, str]) -> dict[str, str]:
    """Give the trace context of an environment (W3C Trace Context), or nothing where it is not
    valid."""
    parent = environ.get("TRACEPARENT", "").strip()
    found = re.fullmatch(_TRACEPARENT, parent) if parent else None
    if not found or not int(found[1], 16) or not int(found[2], 16):
        return {}
    carried = {"TRACEPARENT": found[0]}
    if state := environ.get("TRACESTATE", "").strip():
        carried["TRACESTATE"] = state
    return carried


def _remote(carried: Mapping[str, str]) -> Any:
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

    found = re.fullmatch(_TRACEPARENT, carried["TRACEPARENT"])
    assert found is not None
    return NonRecordingSpan(
        SpanContext(
            trace_id=int(found[1], 16),
            span_id=int(found[2], 16),
            is_remote=True,
            trace_flags=TraceFlags(int(found[3], 16) & 1),
            trace_state=TraceState.from_header([carried.get("TRACESTATE", "")]),
        )
    )


def _of_usage(usage: Usage) -> dict[str, int]:
    """Give the attributes of tokens; those of input count what was cached too, as the conventions
    say of Anthropic."""
    cached = usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens + cached,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_input_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_creation_input_tokens,
    }


def _fail(span: Any, kind: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))
