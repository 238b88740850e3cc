"""What a person is told cannot steer the terminal that shows it."""

import pytest

from podium.core import console


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("a/\x1b[31mb\x07: is no log", "a/\\x1b[31mb\\x07: is no log"),
        ("x\u202ey\u2028z\ud800\r", "x\\u202ey\\u2028z\\ud800\\r"),
        ("two\nlines, 8×A100 [red] „größer“ 日本", "two\nlines, 8×A100 [red] „größer“ 日本"),
    ],
)
def test_sentences(sentence: str, shown: str) -> None:
    with console.errors.capture() as capture:
        console.tell(sentence)
    assert capture.get().rstrip("\n").endswith(shown)
