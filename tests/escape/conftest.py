import pytest
from support_people import outside, place, workspace  # noqa: F401 - fixtures
from support_sandbox import Person


@pytest.fixture(params=[("root", "exec"), ("root", "warm"), ("user", "exec")], ids="-".join)
def who(request: pytest.FixtureRequest) -> Person:
    """Root, and an ordinary user: what must not work must not work for either, nor for a child that
    a zygote forks. One without privileges forks a child that then goes the way of a fresh one: it
    is tried where processes and bounds are, with `support_sandbox.EVERYBODY`."""
    name, start = request.param
    return Person(name, start=start)
