"""What tests of commands use of the tests of what the commands show."""

from tests.podium.report.conftest import make_run as make_run
