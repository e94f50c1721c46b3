from support_people import outside, place, who, workspace  # noqa: F401 - fixtures
