from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import pytest
import timm
import torch
from torch import nn

from ductwork.backbones.norm import recalibrate, running_statistics, set_batch_norm
from ductwork.errors import DataError


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=0, drop_path_rate=0.5).eval()


def single(momentum: float | None = 0.1) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(3, momentum=momentum), nn.Dropout(0.5))


def test_running_statistics_are_all_buffers_of_batch_norm(network: nn.Module) -> None:
    keys = running_statistics(network)
    assert keys == {key for key, _ in network.named_buffers()}
    assert {key.rpartition(".")[2] for key in keys} == {"running_mean", "running_var", "num_batches_tracked"}
    assert running_statistics(nn.BatchNorm1d(2)) == {"running_mean", "running_var", "num_batches_tracked"}
    assert running_statistics(nn.BatchNorm1d(2, track_running_stats=False)) == frozenset()
    assert running_statistics(nn.Linear(2, 2)) == frozenset()


def test_frozen_statistics_stand_still_in_training_while_weights_learn(network: nn.Module) -> None:
    keys = running_statistics(network)
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    set_batch_norm(network.train(), frozen=True)
    network(torch.rand(4, 3, 48, 48)).sum().backward()
    after = network.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in keys)
    assert network.training
    assert all(p.grad is not None for p in network.parameters())

    set_batch_norm(network, frozen=False)
    network(torch.rand(4, 3, 48, 48))
    assert not any(torch.equal(before[key], network.state_dict()[key]) for key in keys)


def test_unfreezing_follows_the_mode_of_the_module(network: nn.Module) -> None:
    set_batch_norm(network.eval(), frozen=False)
    assert not any(module.training for module in network.modules())


@pytest.mark.parametrize("momentum", [0.01, 0.9, None])
def test_recalibration_averages_over_images_whatever_the_momentum(momentum: float | None) -> None:
    module = single(momentum)
    batches = [2 + 3 * torch.randn(count, 3, 5, 5) for count in (8, 8, 3)]
    recalibrate(module, batches)
    layer = module[0]
    assert isinstance(layer, nn.BatchNorm2d)
    mean = torch.cat(batches).double().mean((0, 2, 3))
    torch.testing.assert_close(layer.running_mean, mean.float())
    var = sum(len(b) * b.double().var((0, 2, 3)) for b in batches) / 19
    assert isinstance(var, torch.Tensor)
    torch.testing.assert_close(layer.running_var, var.float())
    assert layer.num_batches_tracked is not None
    assert int(layer.num_batches_tracked) == 3
    assert layer.momentum == momentum


def test_recalibration_touches_neither_weights_nor_modes(network: nn.Module) -> None:
    network.train()
    next(network.children()).eval()
    keys = running_statistics(network)
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    recalibrate(network, (torch.rand(4, 3, 48, 48) for _ in range(2)))
    for key, tensor in network.state_dict().items():
        assert torch.equal(before[key], tensor) != (key in keys), key
    assert [module.training for module in network.modules()] == modes
    assert all(p.grad is None and p.requires_grad for p in network.parameters())


def test_recalibration_is_repeatable_and_free_of_dropout(network: nn.Module) -> None:
    batches = [torch.rand(4, 3, 48, 48), torch.rand(4, 3, 48, 48)]
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        recalibrate(network, batches)
        results.append(torch.cat([network.state_dict()[k].flatten() for k in sorted(running_statistics(network))]))
    assert torch.equal(*results)


def test_recalibration_repairs_statistics() -> None:
    """In evaluation mode the outputs are standardised again."""
    torch.manual_seed(0)
    layers = [("conv", nn.Conv2d(3, 8, 3)), ("bn", nn.BatchNorm2d(8))]
    module = nn.Sequential(OrderedDict(layers)).eval()
    data = 7 + torch.randn(64, 3, 8, 8)
    recalibrate(module, data.chunk(4))
    out = module(data)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(8), atol=1e-4, rtol=0)
    torch.testing.assert_close(out.std((0, 2, 3)), torch.ones(8), atol=1e-2, rtol=0)


def test_an_error_in_the_data_restores_modes_and_momenta() -> None:
    def broken() -> Iterator[torch.Tensor]:
        yield torch.rand(2, 3, 4, 4)
        raise OSError("disk")

    module = single(momentum=0.3).eval()
    with pytest.raises(OSError, match="disk"):
        recalibrate(module, broken())
    assert module[0].momentum == 0.3
    assert not any(part.training for part in module.modules())


def test_no_images_is_an_error_and_keeps_the_old_statistics() -> None:
    module = single()
    module(5 + torch.rand(4, 3, 4, 4))
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    with pytest.raises(DataError, match="no batch"):
        recalibrate(module, [])
    assert all(torch.equal(before[key], tensor) for key, tensor in module.state_dict().items())


def test_without_batch_norm_no_data_is_read() -> None:
    def never() -> Iterator[torch.Tensor]:
        raise AssertionError
        yield

    recalibrate(nn.Linear(2, 2), never())
