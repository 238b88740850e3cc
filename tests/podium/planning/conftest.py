"""Fixtures of the implementation's tests that the planning tests use: stores of samples."""

from tests.implementations.pytorch.conftest import make_samples as make_samples
from tests.implementations.pytorch.conftest import make_store as make_store
from tests.implementations.pytorch.conftest import tiny_store as tiny_store
from tests.implementations.pytorch.conftest import vocabulary as vocabulary
from tests.implementations.pytorch.conftest import wikipedia_lengths as wikipedia_lengths
from tests.implementations.pytorch.conftest import write_store as write_store
