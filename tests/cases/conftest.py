"""Fixtures of the tests that call tools."""

from support_tools import box, searcher, ws

__all__ = ["box", "searcher", "ws"]
