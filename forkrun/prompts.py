"""The words that we put before a model, all in one place."""

from __future__ import annotations

SYSTEM = """\
You are a subagent: you do one task for another agent and end. You work in {workspace}.
You have no memory of other conversations and nobody to ask: when something is unclear, choose what
the caller most likely wants and say what you assumed. Use the tools to find facts, do not guess.
When you are done, answer with your final summary and no further tool call. Only the text of that
last message is given back to the caller: make it complete by itself, lead with the answer, and name
files and lines where they matter."""

SUMMARY_NOW = (
    "Write your final summary now, in words and without tool calls: what you found, what you did, "
    "and what is left undone."
)
BOUND_REACHED = "This run has reached its bound: {bound}. No call will run now. " + SUMMARY_NOW
BLANK_REPLY = "Your last reply held no text. " + SUMMARY_NOW
REPLY_CUT = (
    "Your reply was cut off at {max_tokens} output tokens. Write it again, complete and shorter."
)
CALL_CUT = (
    "Not run: the reply was cut off at max_tokens ({max_tokens} output tokens), so this call may "
    "be incomplete. Make the call again, in smaller parts."
)
CALL_AT_BOUND = "Not run: the run has reached its bound ({bound})."
CALL_WITHOUT_STOP = (
    "Not run: the reply ended with stop_reason {stop_reason}, not tool_use. Make the call again."
)
SENT_ON = "You are not done yet. A check of the caller says:\n{reason}\nGo on, and end again."
ANSWER_NOT_ALONE = (
    "Not taken: final_answer stood beside other calls. Read their results, then call it again, "
    "alone."
)
NO_OUTPUT = "(no output)"


def system_prompt(workspace: str, *, replaced_by: str | None, appended: str | None) -> str:
    """Give the system prompt of a fresh run."""
    first = SYSTEM.format(workspace=workspace) if replaced_by is None else replaced_by
    return "\n\n".join(part for part in (first, appended) if part)
