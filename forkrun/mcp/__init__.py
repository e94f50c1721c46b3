"""The Model Context Protocol, both ways: `server` offers runs to a host as the tool `task`."""
