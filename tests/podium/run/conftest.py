"""Sets of runs with a script as the implementation, in a folder of the test's."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from benchmarks.bert.demo_text import write_embedded_text
from podium.config.load import load_resolved
from podium.config.run_data import read_run_data
from podium.config.run_folder import RunFolder, fixed_configuration, format_facts
from podium.config.schema import RunConfig
from podium.launch import launch

CHECKPOINTS = ((3, 1234), (5, 2468))


@pytest.fixture(scope="module")
def small_text() -> Iterator[None]:
    """Makes the embedded text of these tests small."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr("benchmarks.bert.demo_text.ARTICLES_PER_PART", 2)
        patch.setattr("benchmarks.bert.demo_text.EVALUATION_ARTICLES", 2)
        text = write_embedded_text(Path(folder))
        content = b"".join(path.read_bytes() for path in (*text.training, text.evaluation, text.vocabulary))
        patch.setattr("benchmarks.bert.demo_text.TEXT_SHA256", hashlib.sha256(content).hexdigest())
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of these tests, filled by the first test that needs it."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def home(small_text: None, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the runs/ and results/ of a test."""
    monkeypatch.setattr("podium.run.run_set.RUNS", tmp_path / "runs")
    monkeypatch.setattr("podium.run.data.DATA", data)
    monkeypatch.setattr("podium.run.data.os.cpu_count", lambda: 1)

    monkeypatch.setattr("podium.run.results.RESULTS", tmp_path / "results")
    monkeypatch.setattr("podium.run.collect.check_compliance", lambda result: {"5.0.0": ""})
    return tmp_path


@pytest.fixture
def implementation(
    write_log: Any,
    open_config: RunConfig,
    as_implementation: Any,
    summary: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """Makes an implementation that leaves a complete log (or its first lines, up to `log_until`) and a summary.

    The facts of its checkpoints are written before it starts, so that it need not import Podium.
    """

    def make(log_until: str | None = None, then: str = "", summarise: bool = True) -> None:
        text = write_log(open_config, name="sample.txt").read_text(encoding="utf-8")
        if log_until:
            text = text[: text.index("\n", text.index(f'"{log_until}"')) + 1]
        script = f"(folder / 'result.partial.txt').write_text({text!r})\n{then}\n"
        as_implementation(
            script + (f"(folder / 'summary.json').write_text({json.dumps(summary)!r})" if summarise else "")
        )
        started = launch.command

        def command(config: RunConfig, folder: RunFolder, *others: Any) -> list[str]:
            made_with = fixed_configuration(load_resolved(folder.config))
            for batches, samples in CHECKPOINTS:
                data = read_run_data(folder.data)
                facts = format_facts(batches, samples, 0, 0, "", made_with, {}, data and data.digests)
                (folder.path / f"facts_of_{samples}").write_text(facts, encoding="utf-8")
            return started(config, folder, *others)

        monkeypatch.setattr(launch, "command", command)

    return make
