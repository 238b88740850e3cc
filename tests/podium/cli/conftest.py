"""Fixtures of the report's tests that tests of commands use too."""

from tests.podium.report.conftest import make_run as make_run
