"""The cosine head, the fold and the loss of a block."""

import pytest
import torch
from torch.nn import functional as F

from ductwork import functional as dwf
from ductwork.errors import ShapeError


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_cosine_equals_normalize() -> None:
    x, w = draw(5, 8), draw(6, 8, seed=1)
    expected = 3.0 * F.linear(F.normalize(x), F.normalize(w))
    torch.testing.assert_close(dwf.cosine_logits(x, w, 3.0), expected)
    torch.testing.assert_close(dwf.cosine_logits(x, w, torch.tensor(3.0)), expected)


@pytest.mark.parametrize("factor", [1e-30, 1e-14, 1e14, 1e30])
def test_length_of_a_row_does_not_matter(factor: float) -> None:
    x, w = draw(5, 8), draw(6, 8, seed=1)
    torch.testing.assert_close(dwf.cosine_logits(x, w * factor), dwf.cosine_logits(x, w), atol=1e-6, rtol=0)


def test_zero_row_scores_zero() -> None:
    assert torch.equal(dwf.cosine_logits(draw(5, 8), torch.zeros(2, 8)), torch.zeros(5, 2))


def test_cosine_gradient() -> None:
    x, w = draw(3, 4).double().requires_grad_(), draw(2, 4, seed=1).double().requires_grad_()
    scale = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(dwf.cosine_logits, (x, w, scale))


def test_cosine_keeps_precision() -> None:
    x, w = draw(5, 64).bfloat16(), draw(6, 64, seed=1)
    exact = F.linear(F.normalize(x.double()), F.normalize(w.double()))
    with torch.autocast("cpu", torch.bfloat16):
        scores = dwf.cosine_logits(x, w)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), exact, atol=1e-6, rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_fold_is_modulo(seed: int) -> None:
    scores = draw(100, 4 * 7, seed=seed)
    folded = dwf.fold(scores, torch.arange(28) % 7, 7)
    assert torch.equal(folded.argmax(1), scores.argmax(1) % 7)
    assert torch.equal(folded, scores.reshape(100, 4, 7).amax(1))


def test_fold_of_uneven_domains() -> None:
    scores = torch.tensor([[1.0, 5.0, 2.0, -3.0]])
    assert dwf.fold(scores, torch.tensor([0, 3, 0, 1]), 5).tolist() == [[2.0, -3.0, -torch.inf, 5.0, -torch.inf]]
    assert dwf.fold(scores, torch.tensor([0, 3, 0, 1]), 5, fill=-9.0)[0, 2] == -9.0
    # Classes all of whose scores are below the fill are not lifted to it.
    assert dwf.fold(torch.tensor([[-20.0]]), torch.tensor([0]), 1, fill=0.0).item() == -20.0


def test_fold_gradient_goes_to_the_best_row() -> None:
    scores = torch.tensor([[1.0, 5.0, 2.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(dwf.fold(scores, torch.tensor([0, 0, 1]), 2)[0, 0], scores)
    assert gradient.tolist() == [[0.0, 1.0, 0.0]]


def test_block_cross_entropy_equals_masking() -> None:
    logits, targets = draw(9, 12).requires_grad_(), torch.arange(9) % 4
    loss = dwf.block_cross_entropy(logits, targets, slice(8, 12))
    (gradient,) = torch.autograd.grad(loss, logits)
    masked = logits.masked_fill(torch.arange(12) < 8, -torch.inf)
    reference = F.cross_entropy(masked, targets + 8)
    (expected,) = torch.autograd.grad(reference, logits)
    torch.testing.assert_close(loss, reference)
    torch.testing.assert_close(gradient, expected)
    assert torch.equal(gradient[:, :8], torch.zeros(9, 8))


def test_refusals() -> None:
    with pytest.raises(ShapeError, match=r"\[5, 8\] and \[6, 7\]"):
        dwf.cosine_logits(draw(5, 8), draw(6, 7))
    with pytest.raises(ShapeError, match=r"\[0, 3\), got 0 to 3"):
        dwf.fold(draw(2, 4), torch.arange(4), 3)
    with pytest.raises(ShapeError, match="row_class"):
        dwf.fold(draw(2, 4), torch.arange(3), 3)
    for block in (slice(8, 13), slice(4, 4), slice(0, 8, 2)):
        with pytest.raises(ShapeError, match="does not lie"):
            dwf.block_cross_entropy(draw(2, 12), torch.tensor([0, 1]), block)
