"""Consolidation: increments against the closed form, and what must never be touched."""

from typing import Any

import pytest
import torch

from ductwork import functional as dwf
from ductwork.errors import ShapeError


def state(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "block.weight": torch.randn(6, 4, generator=generator),
        "block.bias": torch.randn(6, generator=generator),
        "norm.running_var": torch.rand(6, generator=generator),
        "norm.num_batches_tracked": torch.tensor(seed),
        "mask": torch.tensor([True, seed % 2 == 0]),
    }


def clone(source: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in source.items()}


@pytest.mark.parametrize("order", [[1, 2, 3], [3, 1, 2], [2, 3, 1]])
def test_increments_equal_closed_form_in_any_order(order: list[int]) -> None:
    base, weights = state(0), {1: 0.5 * 0.9, 2: 0.25, 3: -0.1}
    merged = clone(base)
    for k in order:
        dwf.consolidate(merged, state(k), base, weights[k])
    vectors = [dwf.task_vector(state(k), base) for k in weights]
    closed = dwf.merge_all(base, vectors, list(weights.values()))
    by_hand = base["block.weight"] + sum(
        w * (state(k)["block.weight"] - base["block.weight"]) for k, w in weights.items()
    )
    torch.testing.assert_close(merged, closed, atol=1e-6, rtol=0)
    torch.testing.assert_close(merged["block.weight"], by_hand, atol=1e-6, rtol=0)


def test_weights_zero_and_one() -> None:
    base, expert = state(0), state(1)
    merged = clone(base)
    dwf.consolidate(merged, expert, base, 0.0)
    assert all(torch.equal(merged[key], base[key]) for key in base)
    dwf.consolidate(merged, expert, base, 1.0)
    torch.testing.assert_close(merged["block.weight"], expert["block.weight"], atol=1e-6, rtol=0)


def test_inputs_and_integers_untouched() -> None:
    base, expert = state(0), state(1)
    merged = clone(base)
    before = merged["block.weight"]
    dwf.consolidate(merged, expert, base, 0.7)
    assert merged["block.weight"] is before, "in place"
    assert torch.equal(merged["norm.num_batches_tracked"], torch.tensor(0))
    assert torch.equal(merged["mask"], base["mask"])
    for given, fresh in ((base, state(0)), (expert, state(1))):
        assert all(torch.equal(given[key], fresh[key]) for key in fresh)


@pytest.mark.parametrize("keys", [lambda key: not dwf.is_running_statistic(key), ["block.weight", "block.bias"]])
def test_keys(keys: Any) -> None:
    base, merged = state(0), state(0)
    dwf.consolidate(merged, state(1), base, 1.0, keys=keys)
    assert torch.equal(merged["norm.running_var"], base["norm.running_var"])
    assert not torch.equal(merged["block.bias"], base["block.bias"])
    assert set(dwf.task_vector(state(1), base, keys=keys)) == {"block.weight", "block.bias"}


def test_keys_let_heads_differ() -> None:
    base, merged, expert = state(0), state(0), state(1) | {"head.weight": torch.ones(3)}
    with pytest.raises(ShapeError, match=r"merged lacks 'head\.weight'"):
        dwf.consolidate(merged, expert, base, 1.0)
    dwf.consolidate(merged, expert, base, 1.0, keys=lambda key: not key.startswith("head."))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_accumulate_in_float32(dtype: torch.dtype) -> None:
    base = {"w": torch.full((8,), 1.0, dtype=dtype)}
    expert = {"w": torch.full((8,), 1.0 + 2 * torch.finfo(dtype).eps, dtype=dtype)}
    merged = clone(base)
    dwf.consolidate(merged, expert, base, 0.5)
    assert merged["w"].dtype == dtype
    assert torch.equal(merged["w"].float(), torch.full((8,), 1.0 + torch.finfo(dtype).eps))
    assert dwf.task_vector(expert, base)["w"].dtype == torch.float32


def test_half_types_round_once() -> None:
    generator = torch.Generator().manual_seed(0)
    base, expert, merged = ({"w": torch.randn(500, generator=generator).bfloat16()} for _ in range(3))
    exact = merged["w"].double() + 0.3 * (expert["w"].double() - base["w"].double())
    dwf.consolidate(merged, expert, base, 0.3)
    # Half a unit in the last place of bfloat16, which summing in bfloat16 would exceed.
    torch.testing.assert_close(merged["w"].double(), exact, rtol=1.001 * 2.0**-8, atol=0)


def test_tied_weights_change_once() -> None:
    base, expert = ({"a": torch.full((3,), x), "b": torch.full((3,), x)} for x in (0.0, 1.0))
    tied = torch.zeros(3)
    merged = {"a": tied, "b": tied}
    dwf.consolidate(merged, expert, base, 0.5)
    assert torch.equal(tied, torch.full((3,), 0.5))


def test_live_models() -> None:
    base, expert, live = (torch.nn.Linear(3, 2) for _ in range(3))
    live.load_state_dict(base.state_dict())
    dwf.consolidate(live.state_dict(), expert.state_dict(), base.state_dict(), 1.0)
    torch.testing.assert_close(live.weight, expert.weight)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"block.bias": torch.zeros(7)}, r"'block.bias' is \[6\] in merged but \[7\] in fine_tuned"),
        (
            {"block.bias": torch.zeros(6).double()},
            "'block.bias' is torch.float32 in merged but torch.float64",
        ),
        ({"extra": torch.zeros(1)}, "merged lacks 'extra'"),
    ],
)
def test_failures_change_nothing(change: dict[str, Any], match: str) -> None:
    base, merged = state(0), state(0)
    with pytest.raises(ShapeError, match=match):
        dwf.consolidate(merged, state(1) | change, base, 1.0)
    assert all(torch.equal(merged[key], base[key]) for key in base)


def test_more_refusals() -> None:
    base = state(0)
    with pytest.raises(ShapeError, match=r"share the memory of 'block\.weight'"):
        dwf.consolidate(base, state(1), base, 1.0)
    with pytest.raises(ShapeError, match="finite"):
        dwf.consolidate(clone(base), state(1), base, float("nan"))
    with pytest.raises(ShapeError, match="lacks 'nope'"):
        dwf.task_vector(state(1), base, keys=["nope"])
    with pytest.raises(ShapeError, match=r"base lacks: 'x'"):
        dwf.merge_all(base, [{"x": torch.zeros(1)}], [1.0])


def test_norm_and_cosine() -> None:
    a, b = (dwf.task_vector(state(k), state(0)) for k in (1, 2))
    flat_a, flat_b = (torch.cat([v.flatten().double() for v in x.values()]) for x in (a, b))
    assert dwf.task_vector_norm(a) == pytest.approx(float(flat_a.norm()), rel=1e-14)
    expected = float(torch.nn.functional.cosine_similarity(flat_a, flat_b, dim=0))
    assert dwf.task_vector_cosine(a, b) == pytest.approx(expected, rel=1e-12)
    assert dwf.task_vector_cosine(a, a) == pytest.approx(1.0)
    assert dwf.task_vector_cosine(a, {key: 0 * value for key, value in a.items()}) == 0.0


def test_extra_memory_is_one_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """No allocation made by the merge is larger than the largest tensor."""
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes: list[int] = []

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                sizes.append(result.numel())
            return result

    base = {str(i): torch.zeros(100) for i in range(20)}
    merged = clone(base)
    with Watch():  # type: ignore[no-untyped-call]
        dwf.consolidate(merged, clone(base), base, 1.0)
    assert sizes
    assert max(sizes) == 100


def test_sketches_keep_angles() -> None:
    draw = torch.Generator().manual_seed(0)
    a = {"w": torch.randn(300, 200, generator=draw), "b": torch.randn(500, generator=draw)}
    b = {key: 0.6 * value + 0.8 * torch.randn(value.shape, generator=draw) for key, value in a.items()}
    sketches = []
    for vector in (a, b):
        sketch = torch.zeros(8192, dtype=torch.float64)
        for key, value in vector.items():  # key by key, as a merge does it
            dwf.add_to_sketch(sketch, {key: value})
        sketches.append(sketch)
    estimate = float(torch.nn.functional.cosine_similarity(sketches[0], sketches[1], dim=0))
    assert estimate == pytest.approx(dwf.task_vector_cosine(a, b), abs=4 / 8192**0.5)
    assert float(sketches[0].norm()) == pytest.approx(dwf.task_vector_norm(a), rel=0.05)
    at_once = torch.zeros(8192, dtype=torch.float64)
    dwf.add_to_sketch(at_once, a)
    torch.testing.assert_close(at_once, sketches[0])
    base = {key: torch.zeros_like(value) for key, value in a.items()}
    length, sketch = dwf.length_and_sketch(a, base, 8192)
    assert length == pytest.approx(dwf.task_vector_norm(a))
    torch.testing.assert_close(sketch, at_once)
