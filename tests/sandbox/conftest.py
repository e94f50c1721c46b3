import pytest
from support_people import outside, place, who, workspace  # noqa: F401 - fixtures


@pytest.fixture
def start() -> str:
    """How a sandbox's child comes to be where both ways are not tried: as `forkrun_sandbox` does."""
    return "exec"
