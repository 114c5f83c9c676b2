"""Convolutions on small maps: the same gradients as by definition, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from relatum.models import small_maps
from relatum.models.quick import quickly
from relatum.models.small_maps import quick_small_maps, weight_gradient

SIZES = st.integers(1, 5)


def by_definition(x: Tensor, gradient: Tensor, kernel: tuple[int, int], stride: int, padding: int) -> Tensor:
    """Every weight's gradient, pixel by pixel: the sum over images and outputs of gradient times what it was given."""
    made = torch.zeros(gradient.shape[1], x.shape[1], *kernel, dtype=torch.float64)
    _, _, height, width = x.shape
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            for down in range(gradient.shape[2]):
                for across in range(gradient.shape[3]):
                    y, z = down * stride + row - padding, across * stride + column - padding
                    if 0 <= y < height and 0 <= z < width:
                        made[:, :, row, column] += gradient[:, :, down, across].T @ x[:, :, y, z]
    return made


@given(SIZES, SIZES, st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_the_gradient_is_that_of_the_definition(height, width, tall, wide, stride, padding, seed):
    assume(min(height - tall, width - wide) + 2 * padding >= 0)
    torch.manual_seed(seed)
    x = torch.randn(2, 3, height, width, dtype=torch.float64)
    outputs = [(size + 2 * padding - kernel) // stride + 1 for size, kernel in ((height, tall), (width, wide))]
    gradient = torch.randn(2, 4, *outputs, dtype=torch.float64)
    made = weight_gradient(x, gradient, (tall, wide), (stride, stride), (padding, padding))
    torch.testing.assert_close(made, by_definition(x, gradient, (tall, wide), stride, padding))


@pytest.fixture
def always(monkeypatch):
    """Also where it does not pay."""
    monkeypatch.setattr(small_maps, "_FEWEST_MULTIPLICATIONS", 0)


def layer(**more) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(6, 8, 3, **{"padding": 1, **more}).to(memory_format=torch.channels_last)


def images(size: int, count: int = 5) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(count, 6, size, size).contiguous(memory_format=torch.channels_last).requires_grad_()


def uses_products(convolution: nn.Conv2d, x: Tensor) -> bool:
    with quick_small_maps(convolution):
        return "_Convolution" in type(convolution(x).grad_fn).__name__


@pytest.mark.parametrize("more", [{}, {"bias": False}, {"stride": 2}, {"padding": 0}, {"padding": (1, 0)}])
@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.usefixtures("always")
def test_a_layer_gives_the_same_output_and_gradients(size, more):
    convolution, x = layer(**more), images(size)
    usual = convolution(x)
    torch.manual_seed(2)
    upstream = torch.randn_like(usual)
    wanted = torch.autograd.grad(usual, [x, *convolution.parameters()], upstream)
    assert uses_products(convolution, x) == (usual.shape[2] * usual.shape[3] <= 9)
    with quick_small_maps(convolution):
        quick = convolution(x)
    assert torch.equal(quick, usual)
    for made, expected in zip(
        torch.autograd.grad(quick, [x, *convolution.parameters()], upstream), wanted, strict=True
    ):
        torch.testing.assert_close(made, expected)


@pytest.mark.usefixtures("always")
def test_autocast_gives_float32_gradients_in_the_layout_of_the_weights():
    convolution, x = layer(), images(2, count=64)
    gradients = []
    for quick in (True, False):
        convolution.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            if quick:
                with quick_small_maps(convolution):
                    made = convolution(x)
            else:
                made = convolution(x)
        assert made.dtype == torch.bfloat16
        made.float().square().mean().backward()
        gradients.append(convolution.weight.grad)
    assert gradients[0].dtype == torch.float32
    assert gradients[0].stride() == convolution.weight.stride()
    torch.testing.assert_close(*gradients, rtol=0.02, atol=1e-3)


def test_gradients_of_gradients():
    torch.manual_seed(0)
    x, weight = torch.randn(2, 2, 2, 3, dtype=torch.float64), torch.randn(3, 2, 3, 3, dtype=torch.float64)
    inputs = (x.requires_grad_(), weight.requires_grad_(), torch.randn(3, dtype=torch.float64, requires_grad=True))
    assert torch.autograd.gradgradcheck(lambda *given: small_maps._Convolution.apply(*given, (1, 1), (1, 1)), inputs)


@pytest.mark.usefixtures("always")
def test_what_is_not_known_to_be_quicker_is_left_alone():
    assert uses_products(layer(), images(3))
    assert not uses_products(layer(), images(4))
    assert not uses_products(layer(), images(3).contiguous())
    assert not uses_products(layer().double(), images(3).double())
    assert not uses_products(layer(groups=2), images(3))
    assert not uses_products(layer(dilation=2), images(3))
    assert not uses_products(layer(padding="same"), images(3))
    assert not uses_products(layer(padding="valid"), images(3))
    assert not uses_products(layer(padding_mode="circular"), images(3))
    assert not uses_products(layer().requires_grad_(False), images(3))


def test_only_where_there_is_much_to_multiply_or_a_single_pixel():
    assert uses_products(layer(), images(1))
    assert not uses_products(layer(), images(2))
    much = 8_000_000 // (4 * 6 * 8)
    assert not uses_products(layer(), images(2, count=much))
    assert uses_products(layer(), images(2, count=much + 1))


@pytest.mark.usefixtures("always")
def test_afterwards_the_layer_is_as_before_also_inside_each_other():
    convolution, x = layer(), images(2)
    with quickly(convolution):
        with quickly(convolution):
            assert "_Convolution" in type(convolution(x).grad_fn).__name__
        assert "_Convolution" in type(convolution(x).grad_fn).__name__
    assert "forward" not in vars(convolution)
    assert "_Convolution" not in type(convolution(x).grad_fn).__name__


@pytest.mark.usefixtures("always")
def test_numbers_that_torch_does_not_multiply_have_its_own_error():
    with quick_small_maps(convolution := layer().bfloat16()), pytest.raises(RuntimeError, match="same"):
        convolution(images(2))
    with torch.autocast("cpu", torch.bfloat16):
        assert uses_products(layer(), images(2))
        assert not uses_products(layer().double(), images(2).double())


@pytest.mark.usefixtures("always")
def test_an_input_that_fits_no_kernel_has_torchs_own_error():
    with quick_small_maps(convolution := layer(padding=0)), pytest.raises(RuntimeError, match="Kernel size"):
        convolution(images(2))
