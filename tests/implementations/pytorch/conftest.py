"""Fixtures of the PyTorch implementation's tests: samples of Wikipedia's lengths, small models, process groups."""

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from benchmarks.bert.preparation.prepare import prepare
from benchmarks.bert.preparation.settings import GenerationSettings
from benchmarks.bert.samples import Sample, Samples
from benchmarks.bert.shard import Origin, write_shard
from benchmarks.bert.sizes import Size
from benchmarks.bert.store import SampleStore
from implementations.pytorch.distributed.gradient_sync import wrap_ddp
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.kernels.cpu.common import use_torch_num_threads
from implementations.pytorch.kernels.cpu.kernel_set import NUMBA
from implementations.pytorch.kernels.interface import Kernels
from implementations.pytorch.model.bert import BertForPreTraining, ModelOptions
from implementations.pytorch.optim.build import build_optimizer
from implementations.pytorch.optim.schedule import rate_table
from implementations.pytorch.step import Stepper
from podium.config.load import load_system
from podium.config.schema import RunConfig
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.batch_plan import TrainingOrder

ROOT = Path(__file__).resolve().parents[3]
HISTOGRAM = ROOT.parent / "shared" / "data" / "wikipedia_length_histogram_512.json"
VOCABULARY = 101
SMALL = Size(
    "small", layers=2, hidden=32, heads=4, feed_forward=48, evaluation_samples=8, evaluation_interval=8, initial_std=0.1
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Use one thread: with tensors as small as here, several threads mostly wait for each other."""
    torch.set_num_threads(1)
    use_torch_num_threads()


@pytest.fixture(autouse=True)
def frozen_objects() -> None:
    """Imported modules above all: tests collect garbage themselves, which would look through them every time."""
    gc.freeze()


@pytest.fixture(scope="session")
def vocabulary() -> int:
    return VOCABULARY


@pytest.fixture(scope="session")
def small() -> Size:
    return SMALL


@pytest.fixture(scope="session")
def wikipedia_lengths() -> Callable[[int, int], np.ndarray]:
    """(count, seed) → lengths [count] uint16, drawn from Wikipedia's histogram, or from a similar distribution."""
    if HISTOGRAM.is_file():
        shares = np.array(json.loads(HISTOGRAM.read_text(encoding="utf-8")), dtype=np.float64)
    else:  # a quarter of all samples have the full length, the rest are mostly short
        shares = np.zeros(512)
        shares[4:511] = 0.75 * np.exp(-np.arange(507) / 200)
        shares[511] = 0.25 / 0.75 * shares.sum()

    def draw(count: int, seed: int) -> np.ndarray:
        random = np.random.default_rng(seed)
        return random.choice(np.arange(1, 513), count, p=shares / shares.sum()).astype(np.uint16)

    return draw


def _make_samples(lengths: Sequence[int], seed: int = 0) -> list[Sample]:
    random = np.random.default_rng(seed)
    samples = []
    for length in map(int, lengths):
        masked = min(76, max(1, round(0.15 * length)))
        samples.append(
            Sample(
                token_ids=random.integers(1, VOCABULARY, length).astype(np.uint16),
                first_segment_length=int(random.integers(1, length + 1)),
                masked_positions=np.sort(random.choice(length, masked, replace=False)).astype(np.uint16),
                masked_token_ids=random.integers(1, VOCABULARY, masked).astype(np.uint16),
                next_sentence_label=int(random.integers(0, 2)),
            )
        )
    return samples


@pytest.fixture(scope="session")
def make_samples() -> Callable[..., list[Sample]]:
    """(lengths, seed) → samples of these lengths with random tokens, 15% of them masked."""
    return _make_samples


@pytest.fixture(scope="session")
def write_store() -> Callable[..., Path]:
    """(folder, lengths, seed) → the path of the one shard with `make_samples(lengths, seed)`."""

    def write(folder: Path, lengths: Sequence[int], seed: int = 0) -> Path:
        samples = _make_samples(lengths, seed)
        path = folder / "samples.h5"
        folder.mkdir(parents=True, exist_ok=True)
        flat = Samples(
            token_ids=np.concatenate([s.token_ids for s in samples]),
            sample_offsets=np.cumsum([0, *(len(s.token_ids) for s in samples)]),
            first_segment_lengths=np.array([s.first_segment_length for s in samples], dtype=np.uint16),
            masked_positions=np.concatenate([s.masked_positions for s in samples]),
            masked_token_ids=np.concatenate([s.masked_token_ids for s in samples]),
            masked_offsets=np.cumsum([0, *(len(s.masked_positions) for s in samples)]),
            next_sentence_labels=np.array([s.next_sentence_label for s in samples], dtype=np.uint8),
        )
        write_shard(path, flat, Origin.of_text("samples", "cd" * 32, "ab" * 32, GenerationSettings()))
        return path

    return write


@pytest.fixture
def make_store(tmp_path: Path, write_store: Callable[..., Path]) -> Callable[..., SampleStore]:
    """(lengths, seed) → an opened store."""
    return lambda lengths, seed=0: SampleStore([write_store(tmp_path / "store", lengths, seed)])


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[SampleStore, Path]:
    """A store of samples of a generated text, and the path of its vocabulary of 12 tokens."""
    folder = tmp_path_factory.mktemp("tiny_store")
    random = np.random.default_rng(6)
    vocabulary, text = folder / "vocab.txt", folder / "text"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]), encoding="utf-8")
    documents = [
        "".join(" ".join(random.choice(list("abcdefg"), length)) + "\n" for length in random.integers(3, 60, 6))
        for _ in range(5)
    ]
    text.write_text("\n".join(documents), encoding="utf-8")
    return SampleStore(prepare([text], vocabulary, folder / "store")), vocabulary


@pytest.fixture(scope="session")
def make_model() -> Callable[..., BertForPreTraining]:
    """A small model in which every parameter contributes to the loss, including biases and LayerNorm."""

    def make(
        attention: str = "grouped",
        dropout_probability: float = 0.0,
        size: Size = SMALL,
        seed: int = 0,
        kernels: Kernels = NUMBA,
        **options: Any,
    ) -> BertForPreTraining:
        torch.manual_seed(seed)
        model_options = ModelOptions(attention=attention, kernels=kernels, **options)
        model = BertForPreTraining(
            size, VOCABULARY, dropout_probability=dropout_probability, model_options=model_options
        )
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter += 0.1 * torch.randn_like(parameter)
        return model

    return make


@pytest.fixture(scope="session")
def make_config() -> Callable[..., RunConfig]:
    """The laptop's configuration with these fields replaced; `ranks` sets the number of processes."""

    def make(ranks: int = 1, **changes: Any) -> RunConfig:
        config = load_system("laptop", settings=["attention=grouped"])
        launch = config.launch.model_copy(update={"processes_per_node": ranks})
        optimizer = config.optimizer.model_copy(update=changes.pop("optimizer", {}))
        return config.model_copy(update={"launch": launch, "optimizer": optimizer, **changes})

    return make


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """A process group with this process as the only rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        yield Processes(0, 1, torch.device("cpu"))
    finally:
        gc.collect()  # a DDP module must not outlive its group
        dist.destroy_process_group()


@pytest.fixture
def make_stepper(processes: Processes) -> Callable[..., Stepper]:
    """(config, model, precision) → a stepper of the only rank, in fp32 by default."""

    def make(config: RunConfig, model: BertForPreTraining, precision: str = "fp32") -> Stepper:
        ddp, sync = wrap_ddp(model, processes.device, config.clipping, config.wire, config.gradient_bucket_mib)
        optimizer = build_optimizer(model, config.optimizer)
        rates = rate_table(config.optimizer, 100, processes.device)
        return Stepper(config, processes, ddp, sync, optimizer, rates, precision)

    return make


@pytest.fixture(scope="session")
def make_order() -> Callable[[SampleStore, RunConfig], TrainingOrder]:
    def make(store: SampleStore, config: RunConfig) -> TrainingOrder:
        return TrainingOrder(
            store,
            seed=7,
            strategy=config.balancing,
            global_batch_size=config.global_batch_size,
            spec=AssignmentSpec(config.launch.ranks, config.launch.processes_per_node),
            accumulation_steps=config.gradient_accumulation_steps,
        )

    return make


@pytest.fixture(scope="session")
def relative_error() -> Callable[[torch.Tensor, torch.Tensor], float]:
    """‖found − expected‖ / ‖expected‖."""

    def error(found: torch.Tensor, expected: torch.Tensor) -> float:
        assert found.shape == expected.shape
        found, expected = found.detach().double(), expected.detach().double()
        return float((found - expected).norm() / expected.norm())

    return error
