"""Loading of checkpoints: the model has their tensor names, and its scores equal those of transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.bert.checkpoint.convert import convert
from benchmarks.bert.checkpoint.huggingface import write_huggingface_checkpoint
from benchmarks.bert.checkpoint.names import podium_shapes
from benchmarks.bert.checkpoint.podium import write_podium_checkpoint
from benchmarks.bert.checkpoint.weights import Weights
from benchmarks.bert.samples import Sample
from benchmarks.bert.sizes import LARGE, SIZES, TINY, Size
from benchmarks.bert.store import SampleStore
from implementations.pytorch.build_run import load_checkpoint
from implementations.pytorch.data.batch import collate
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.trainer import Trainer
from podium.config.run_folder import RunFolder
from podium.config.schema import DataSettings, Evaluation, RunConfig
from podium.core.errors import UsageError, WorkError

Maker = Callable[..., list[Sample]]
Models = Callable[..., BertForPreTraining]
Error = Callable[[Tensor, Tensor], float]


@pytest.fixture(autouse=True)
def small_is_a_known_size(monkeypatch: pytest.MonkeyPatch, small: Size) -> None:
    monkeypatch.setitem(SIZES, small.name, small)


def weights_of(model: BertForPreTraining) -> Weights:
    tensors = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
    return Weights(model.size, model.vocabulary, tensors)


@pytest.mark.parametrize("name", ["large", "tiny", "small"])
@pytest.mark.parametrize("vocabulary", [101, 30_522])
def test_checkpoint_names_and_shapes_are_the_models(name: str, vocabulary: int, small: Size) -> None:
    size = {"large": LARGE, "tiny": TINY, "small": small}[name]
    with torch.device("meta"):
        model = BertForPreTraining(size, vocabulary, dropout_probability=0.1)
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == podium_shapes(size, vocabulary)


# Against transformers


def huggingface_model(size: Size, vocabulary: int, activation: str = "gelu_new") -> Any:
    """A BertForPreTraining of transformers in which every parameter contributes to the scores."""
    from transformers import BertConfig
    from transformers import BertForPreTraining as HuggingFaceBert

    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.feed_forward,
        max_position_embeddings=size.positions,
        hidden_act=activation,
    )
    model = HuggingFaceBert(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@torch.no_grad()
def huggingface_scores(model: Any, samples: list[Sample]) -> tuple[Tensor, Tensor]:
    """Masked-LM logits [M, vocabulary] and next-sentence logits [S, 2] of padded sequences with a mask."""
    width = max(len(sample.token_ids) for sample in samples)
    ids, segments, mask = (torch.zeros(len(samples), width, dtype=torch.int64) for _ in range(3))
    for row, sample in enumerate(samples):
        length = len(sample.token_ids)
        ids[row, :length] = torch.from_numpy(sample.token_ids.astype(np.int64))
        segments[row, sample.first_segment_length : length] = 1
        mask[row, :length] = 1
    scores = model(input_ids=ids, token_type_ids=segments, attention_mask=mask)
    masked = [scores.prediction_logits[row, s.masked_positions.tolist()] for row, s in enumerate(samples)]
    return torch.cat(masked), scores.seq_relationship_logits


@torch.no_grad()
def podium_scores(model: BertForPreTraining, samples: list[Sample]) -> tuple[Tensor, Tensor]:
    """The same scores by Podium's model. `samples` must descend in length, as `collate` sorts them."""
    model.eval()
    batch = collate(samples, None, 64)
    scores = model(batch)
    return scores.masked_lm[: batch.masked], scores.next_sentence


@pytest.fixture
def samples(make_samples: Maker, wikipedia_lengths: Callable[[int, int], np.ndarray]) -> list[Sample]:
    made = make_samples([*wikipedia_lengths(7, 5), 512, 3, 40, 40])
    return sorted(made, key=lambda sample: -len(sample.token_ids))


def empty_model(size: Size, vocabulary: int) -> BertForPreTraining:
    return BertForPreTraining(size, vocabulary, dropout_probability=0.1)


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh"])
def test_hugging_face_weights_give_hugging_face_scores(
    tmp_path: Path, samples: list[Sample], small: Size, vocabulary: int, activation: str, relative_error: Error
) -> None:
    hf_model = huggingface_model(small, vocabulary, activation)
    hf_model.save_pretrained(tmp_path / "hf")
    done = convert(tmp_path / "hf", tmp_path / "x.safetensors")
    assert (done.size, done.vocabulary_size, done.notes) == (small, vocabulary, ())
    podium_model = empty_model(small, vocabulary)
    load_checkpoint(podium_model, tmp_path / "x.safetensors")
    for found, expected in zip(
        podium_scores(podium_model, samples), huggingface_scores(hf_model, samples), strict=True
    ):
        assert relative_error(found, expected) < 1e-5


def test_podium_weights_give_podium_scores_in_transformers(
    tmp_path: Path, samples: list[Sample], make_model: Models, relative_error: Error
) -> None:
    from transformers import BertForPreTraining as HuggingFaceBert

    podium_model = make_model()
    write_podium_checkpoint(tmp_path / "x.safetensors", weights_of(podium_model))
    convert(tmp_path / "x.safetensors", tmp_path / "hf", to="huggingface")
    hf_model, loading_info = HuggingFaceBert.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(loading_info.values()), loading_info
    assert hf_model.dtype == torch.float32
    assert (hf_model.config.layer_norm_eps, hf_model.config.hidden_act) == (1e-12, "gelu_new")
    for found, expected in zip(
        huggingface_scores(hf_model, samples), podium_scores(podium_model, samples), strict=True
    ):
        assert relative_error(found, expected) < 1e-5


def test_transformers_saves_the_same_weights(tmp_path: Path, make_model: Models) -> None:
    from transformers import BertForPreTraining as HuggingFaceBert

    weights = weights_of(make_model())
    write_huggingface_checkpoint(tmp_path / "hf", weights)
    HuggingFaceBert.from_pretrained(tmp_path / "hf").save_pretrained(tmp_path / "again")
    write_podium_checkpoint(tmp_path / "x.safetensors", weights)
    convert(tmp_path / "again", tmp_path / "y.safetensors")
    assert (tmp_path / "x.safetensors").read_bytes() == (tmp_path / "y.safetensors").read_bytes()


# Loading


def test_a_checkpoint_is_loaded_bit_for_bit(tmp_path: Path, make_model: Models) -> None:
    expected, model = make_model(seed=1), make_model(seed=2)
    write_podium_checkpoint(tmp_path / "x.safetensors", weights_of(expected))
    parameters = dict(model.named_parameters())
    load_checkpoint(model, tmp_path / "x.safetensors")
    for name, value in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_checkpoint_of_another_size_is_an_error_and_changes_no_weights(
    tmp_path: Path, make_model: Models, small: Size, vocabulary: int
) -> None:
    write_podium_checkpoint(tmp_path / "x.safetensors", weights_of(make_model(seed=1)))
    for model, message in (
        (empty_model(small, vocabulary + 1), f"of {vocabulary} tokens, the vocabulary in use {vocabulary + 1}"),
        (empty_model(TINY, vocabulary), "the checkpoint is of size small, the model of size tiny"),
    ):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(UsageError, match=message):
            load_checkpoint(model, tmp_path / "x.safetensors")
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_checkpoint_with_a_nan_is_an_error(tmp_path: Path, make_model: Models) -> None:
    weights = weights_of(make_model())
    weights.tensors["pooler.bias"][0] = np.nan
    write_podium_checkpoint(tmp_path / "x.safetensors", weights)
    with pytest.raises(WorkError, match=r"pooler\.bias has values that are infinite or NaN, 1 in all"):
        load_checkpoint(make_model(), tmp_path / "x.safetensors")


@pytest.mark.parametrize("configured", [False, True])
def test_a_run_starts_from_its_initial_checkpoint(
    tmp_path: Path,
    configured: bool,
    processes: Processes,
    make_config: Callable[..., RunConfig],
    tiny_store: tuple[SampleStore, Path],
) -> None:
    """The weights after initialisation and warm-up, as the first step finds them."""
    store, vocabulary_path = tiny_store
    checkpoint = empty_model(TINY, 12)
    write_podium_checkpoint(tmp_path / "x.safetensors", weights_of(checkpoint))
    data = DataSettings(store=store.paths[0].parent, evaluation_store=store.paths[0].parent, vocabulary=vocabulary_path)
    config = make_config(
        data=data,
        seed=5,
        global_batch_size=4,
        precision="fp32",
        initial_checkpoint=tmp_path / "x.safetensors" if configured else None,
        evaluation=Evaluation(samples=8),
    )
    trainer = Trainer(config, processes, RunFolder(tmp_path), None)
    trainer._initialise()
    found = trainer.stepper.model.module.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in checkpoint.state_dict().items()) is configured
