"""The Triton kernels in Triton's interpreter, compared with the eager kernels in float64.

Run by test_gpu.py in a new process. The interpreter runs the kernels' code on the CPU, one program after another.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.bert.samples import Sample
from implementations.pytorch.data.batch import IGNORED, collate
from implementations.pytorch.distributed.gradient_sync import wrap_ddp
from implementations.pytorch.distributed.process_group import Processes
from implementations.pytorch.kernels.eager import EAGER
from implementations.pytorch.kernels.gpu import embedding_gradient
from implementations.pytorch.kernels.gpu.embedding_gradient import add_rows
from implementations.pytorch.kernels.gpu.kernel_set import TRITON
from implementations.pytorch.kernels.interface import dropout_threshold_and_scale
from implementations.pytorch.model.bert import BertForPreTraining
from implementations.pytorch.model.decoder import decode_padded
from implementations.pytorch.model.loss import loss_sums
from tests.implementations.pytorch.kernels.gpu import lasting_language

lasting_language.install()

Call = Callable[..., Tensor]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
TYPES = pytest.mark.parametrize("dtype", list(TOLERANCE))


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(call: Call, activations: list[Tensor], parameters: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    other = torch.float64 if dtype == torch.float64 else torch.float32
    inputs = [a.to(dtype).requires_grad_() for a in activations] + [p.to(other).requires_grad_() for p in parameters]
    result = call(*inputs)
    upstream = normal(*result.shape, seed=99).to(result.dtype)
    return [result.detach(), *torch.autograd.grad(result, inputs, upstream)]


def assert_same(
    kernel: Call, reference: Call, activations: list[Tensor], parameters: list[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    rounded = [a.to(dtype).double() for a in activations]
    found = run(kernel, rounded, parameters, dtype)
    expected = run(reference, rounded, [p.float().double() for p in parameters], torch.float64)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        error = float((one.double() - other).norm() / (other.norm() if other.any() else 1.0))
        assert error < TOLERANCE[dtype], number
    return found


@TYPES
@pytest.mark.parametrize(("tokens", "width"), [(1, 8), (7, 96), (5, 1100)])
def test_bias_gelu(dtype: torch.dtype, tokens: int, width: int) -> None:
    x, bias = normal(tokens, width, scale=3), normal(width, seed=1)
    assert_same(TRITON.bias_gelu, EAGER.bias_gelu, [x], [bias], dtype)


@TYPES
@pytest.mark.parametrize(("tokens", "width"), [(1, 8), (7, 96), (5, 1000)])
def test_residual_norm(dtype: torch.dtype, tokens: int, width: int) -> None:
    activations = [normal(tokens, width, seed=n) for n in (1, 2)]
    parameters = [normal(width, seed=n) for n in (3, 4, 5)]
    assert_same(
        lambda *inputs: TRITON.residual_norm(*inputs, 0.0),
        lambda *inputs: EAGER.residual_norm(*inputs, 0.0),
        activations,
        parameters,
        dtype,
    )


@TYPES
def test_residual_norm_with_dropout(dtype: torch.dtype) -> None:
    """The mask is taken from the update's gradient, which is exactly 0 where it was dropped."""
    tokens, width, p = 6, 96, 0.25
    activations = [normal(tokens, width, seed=n) for n in (1, 2)]
    parameters = [normal(width, seed=n) for n in (3, 4, 5)]
    torch.manual_seed(0)
    found = run(lambda *i: TRITON.residual_norm(*i, p), [a.to(dtype) for a in activations], parameters, dtype)
    keeps = (found[2] != 0).double() * dropout_threshold_and_scale(p)[1]

    def reference(x: Tensor, update: Tensor, update_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return EAGER.residual_norm(x, (update + update_bias) * keeps, torch.zeros_like(update_bias), weight, bias, 0.0)

    def kernel(*inputs: Tensor) -> Tensor:
        torch.manual_seed(0)
        return TRITON.residual_norm(*inputs, p)

    assert_same(kernel, reference, activations, parameters, dtype)
    assert 0.1 < float((keeps == 0).double().mean()) < 0.4


@pytest.mark.parametrize("width", [8, 100, 1024])
def test_dropped_share_is_right_and_masks_differ_by_row_and_call(width: int) -> None:
    rows, p = 320 // width + 20, 0.1
    torch.manual_seed(0)
    x, ones, zeros = torch.zeros(rows, width), torch.ones(width), torch.zeros(width)
    masks = []
    for _ in range(2):
        update = torch.ones(rows, width, requires_grad=True)
        y = TRITON.residual_norm(x, update, zeros, ones, zeros, p)
        upstream = normal(rows, width).float()
        (gradient,) = torch.autograd.grad(y, update, upstream)
        masks.append(gradient != 0)
    share = float(masks[0].double().mean())
    assert abs(share - 0.9) < 5 * (0.09 / masks[0].numel()) ** 0.5
    agree = float((masks[0] == masks[1]).double().mean())
    assert abs(agree - 0.82) < 5 * (0.82 * 0.18 / masks[0].numel()) ** 0.5
    assert width == 8 or len({tuple(row.tolist()) for row in masks[0][:20]}) == 20


def test_masks_of_all_rows_and_columns_differ() -> None:
    rows, width = 24, 64
    torch.manual_seed(0)
    update = torch.ones(rows, width, requires_grad=True)
    zeros = torch.zeros(width)
    y = TRITON.residual_norm(torch.zeros(rows, width), update, zeros, torch.ones(width), zeros, 0.5)
    (gradient,) = torch.autograd.grad(y, update, normal(rows, width).float())
    assert len((gradient != 0).unique(dim=0)) == rows
    assert len((gradient != 0).unique(dim=1).T) == width


def test_inputs_and_gradients_of_any_strides() -> None:
    rows, width = 3, 16
    inputs = [normal(width, rows, seed=n).float().T.requires_grad_() for n in (1, 2)]
    parameters = [normal(width, seed=n).float() for n in (3, 4, 5)]
    labels = torch.tensor([1, IGNORED, 15])
    upstream = normal(width, rows, seed=6).float().T
    ids = (torch.tensor([1, 0, 1]), torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]))
    tables = [normal(3, width, seed=n).float().requires_grad_() for n in (7, 8, 9)]
    found, expected = (
        [
            *torch.autograd.grad(kernels.residual_norm(*inputs, *parameters, 0.0), inputs, upstream),
            *torch.autograd.grad(kernels.bias_gelu(inputs[0], parameters[0]), inputs[0], upstream),
            *torch.autograd.grad(kernels.cross_entropy(inputs[0], labels) * 3, inputs[0]),
            *torch.autograd.grad(
                kernels.embedding_norm(ids, tuple(tables), *parameters[1:], 0.0, torch.float32), tables, upstream
            ),
        ]
        for kernels in (TRITON, EAGER)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@TYPES
@pytest.mark.parametrize("p", [0.0, 0.25])
def test_embedding_norm(dtype: torch.dtype, p: float) -> None:
    tokens, width = 9, 48
    ids = tuple(torch.randint(0, n, (tokens,), generator=torch.Generator().manual_seed(n)) for n in (30, 20, 2))
    parameters = [normal(n, width, seed=n) for n in (30, 20, 2)] + [normal(width, seed=n) for n in (3, 4)]

    def kernel(*inputs: Tensor) -> Tensor:
        torch.manual_seed(0)
        return TRITON.embedding_norm(ids, inputs[:3], *inputs[3:], p, dtype)  # type: ignore[arg-type]

    found = run(kernel, [], parameters, torch.float32)
    assert found[0].dtype == dtype
    keeps = (found[0] != 0).double() * dropout_threshold_and_scale(p)[1]

    def reference(*inputs: Tensor) -> Tensor:
        return keeps * EAGER.embedding_norm(ids, inputs[:3], *inputs[3:], 0.0, torch.float64)  # type: ignore[arg-type]

    expected = run(reference, [], [t.float().double() for t in parameters], torch.float64)
    for one, other in zip(found, expected, strict=True):
        assert float((one.double() - other).norm() / other.norm()) < TOLERANCE[dtype]
    assert p == 0 or 0.1 < float((keeps == 0).double().mean()) < 0.4


@TYPES
@pytest.mark.parametrize(("masked", "vocabulary_size"), [(1, 3), (5, 1003), (3, 4099), (2, 4102), (1, 16)])
def test_cross_entropy(dtype: torch.dtype, masked: int, vocabulary_size: int) -> None:
    labels = torch.randint(0, vocabulary_size, (masked,), generator=torch.Generator().manual_seed(0))
    labels[1::5] = IGNORED
    assert_same(
        lambda x: TRITON.cross_entropy(x, labels),
        lambda x: EAGER.cross_entropy(x, labels),
        [normal(masked, vocabulary_size, scale=4)],
        [],
        dtype,
    )


@TYPES
@pytest.mark.parametrize("vocabulary_size", [3, 1003, 4099, 64])
def test_cross_entropy_of_a_padded_vocabulary(dtype: torch.dtype, vocabulary_size: int) -> None:
    """The decoder's padded logits and gradients, by the kernel and unpadded in float64."""
    masked, width = 5, 16
    labels = torch.randint(0, vocabulary_size, (masked,), generator=torch.Generator().manual_seed(0))
    labels[1::3] = IGNORED
    x = normal(masked, width, seed=1).to(dtype).requires_grad_()
    weight = normal(vocabulary_size, width, seed=2).to(dtype).float().requires_grad_()
    bias = normal(vocabulary_size, seed=3).to(dtype).float().requires_grad_()
    logits = decode_padded(x, weight, bias, 64)
    assert logits.shape == (masked, -(-vocabulary_size // 64) * 64)
    found = TRITON.cross_entropy(logits, labels)
    x64, weight64, bias64 = (tensor.detach().double().requires_grad_() for tensor in (x, weight, bias))
    expected = EAGER.cross_entropy(torch.nn.functional.linear(x64, weight64, bias64), labels)
    torch.testing.assert_close(found.double(), expected, rtol=TOLERANCE[dtype], atol=0)
    (padded,) = torch.autograd.grad(found, logits, retain_graph=True)
    assert not padded[:, vocabulary_size:].any()
    inputs, references = (x, weight, bias), (x64, weight64, bias64)
    for one, other in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, references), strict=True):
        assert float((one.double() - other).norm() / other.norm()) < 2 * TOLERANCE[dtype]


def test_cross_entropy_with_the_maximum_in_a_later_block() -> None:
    logits = normal(2, 4102)
    logits[:, -1] += 3
    labels = torch.tensor([5, 4101])
    for scale in (1.0, 10.0):
        found = TRITON.cross_entropy((scale * logits).float(), labels)
        torch.testing.assert_close(
            found.double(), EAGER.cross_entropy(scale * logits, labels), rtol=1e-5, atol=0, check_dtype=False
        )


def test_cross_entropy_of_ignored_labels_large_logits_and_nan() -> None:
    logits = normal(2, 9).float().requires_grad_()
    loss = TRITON.cross_entropy(logits, torch.full((2,), IGNORED))
    assert float(loss.detach()) == 0
    assert not torch.autograd.grad(loss, logits)[0].any()
    large = 1e4 + normal(2, 9).float()
    labels = torch.tensor([1, 2])
    torch.testing.assert_close(
        TRITON.cross_entropy(large, labels), EAGER.cross_entropy(large, labels), rtol=1e-4, atol=0
    )
    broken = normal(2, 9).float()
    broken[1, 4] = float("nan")
    assert TRITON.cross_entropy(broken, labels).isnan()


@pytest.mark.parametrize(
    "lengths",
    [
        [1] * 40,  # no id twice
        [300],  # one run over ten chunks
        [31, 1, 1],
        [32, 32, 32],
        [33, 30, 2],
        [20, 64, 12, 5],
        [1],
        [5, 40, 300, 7, 1, 1, 90, 3],
    ],
)
@pytest.mark.parametrize("width", [8, 1100])
def test_rows_are_added_to_a_table_gradient(lengths: list[int], width: int) -> None:
    """For runs of equal ids that begin and end anywhere in the chunks; rows of other ids stay as they are."""
    random = torch.Generator().manual_seed(sum(lengths))
    values = torch.randperm(400, generator=random)[: len(lengths)].sort().values
    ids = values.repeat_interleave(torch.tensor(lengths))
    order = torch.randperm(len(ids), generator=random)
    dx, before = normal(len(ids), width).float(), normal(400, width, seed=1).float()
    found = before.clone()
    add_rows(found, ids[order], dx)
    expected = before.double().index_add_(0, ids[order], dx.double())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    others = torch.ones(400, dtype=torch.bool)
    others[values] = False
    assert torch.equal(found[others], before[others])
    again = before.clone()
    add_rows(again, ids[order], dx)
    assert torch.equal(found, again)


def test_gradients_of_shared_embeddings_are_added_in_place(
    monkeypatch: pytest.MonkeyPatch,
    make_samples: Callable[..., list[Sample]],
    make_model: Callable[..., BertForPreTraining],
    processes: Processes,
) -> None:
    """Autograd gets no gradient of the embeddings, and DDP's hooks run and average the whole one; over two steps."""
    added: list[int] = []

    def record(gradient: Tensor, ids: Tensor, dx: Tensor) -> None:
        added.append(len(gradient))
        add_rows(gradient, ids, dx)

    monkeypatch.setattr(embedding_gradient, "LARGE_TABLE", 101)
    monkeypatch.setattr(embedding_gradient, "add_rows", record)
    batch = collate(make_samples([9, 5]))
    gradients = []
    for kernels, multiple in ((EAGER, 1), (TRITON, 64)):
        model = make_model(kernels=kernels, vocabulary_multiple=multiple)
        ddp, sync = wrap_ddp(model, torch.device("cpu"))
        for _ in range(2):
            model.zero_grad(set_to_none=False)
            sync.begin(ddp, None)
            loss = loss_sums(ddp(batch), batch, kernels).mean(batch.masked, batch.sequences)
            torch.autograd.backward(loss)
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert added == [101, 512]  # words and positions; in the first step there is no gradient yet
    for found, expected in zip(gradients[1], gradients[0], strict=True):
        assert found is not None and expected is not None
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
