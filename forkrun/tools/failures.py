"""How a tool says that it could not do what was asked."""

from __future__ import annotations


class ToolError(Exception):
    """A call that cannot be carried out; the text is written for the model.

    `denied` says that the call reached for something that it must not have.
    """

    def __init__(self, text: str, *, denied: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.denied = denied
