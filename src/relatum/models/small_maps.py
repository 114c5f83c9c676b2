"""A quicker gradient for the weights of convolutions on maps of a few pixels, as small images have in the last stages.

Torch's kernel for CPUs multiplies the padding as well, and at 3 x 3 pixels and less that is most of the work: a 3 x 3
convolution of 512 channels on single pixels takes it 7 ms in bfloat16 (128 images, two threads), where the middle of
the kernel alone sees anything. One matrix product for each position in the kernel, over those pixels that it sees,
takes 0.3 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from relatum.models.attention import precision_of_products
from relatum.models.replaced import is_replaced, replaced_forward

Pair = tuple[int, int]

# Time of the products over that of the kernel, 128 images of 256 channels, two threads, in bfloat16 and in float32:
# 0.05 and 0.11 on single pixels, 0.30 and 0.53 at 2 x 2, 0.52 and 0.77 at 3 x 3, 0.82 and 0.91 at 4 x 4, but more than
# 1 at 4 x 4 with half the channels.
_MOST_PIXELS = 9
# Below so many multiplications a product takes longer to start than the kernel to compute (1.2 to 5 times the time).
# On single pixels most of the kernel sees nothing, and there is one product only.
_FEWEST_MULTIPLICATIONS = 8_000_000
_MEASURED = {torch.float32, torch.bfloat16}


@contextmanager
def quick_small_maps(model: nn.Module) -> Iterator[None]:
    """Inside, plain convolutions in `model` find the gradient of their weights by products where their maps are small.

    Args:
        model: anything. What it computes is the same, its gradients are the same up to rounding.
    """
    with replaced_forward([part for part in model.modules() if _is_usual(part)], _forward):
        yield


def weight_gradient(x: Tensor, gradient: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    """Return the gradient for the weights (O, C, *kernel) of a convolution.

    Args:
        x: its input, (N, C, H, W).
        gradient: that for its output, (N, O, H', W').
        kernel: height and width.
        stride: of both directions.
        padding: of both directions, with zeros.
    """
    seen, wanted = x.permute(0, 2, 3, 1), gradient.permute(0, 2, 3, 1)
    channels, width = x.shape[1], gradient.shape[1]
    made = x.new_zeros(width, *kernel, channels)
    rows, columns = (_overlaps(kernel[d], stride[d], padding[d], x.shape[d + 2], gradient.shape[d + 2]) for d in (0, 1))
    for row, (of_x, of_output) in rows:
        for column, (across_x, across_output) in columns:
            pixels = seen[:, of_x, across_x].reshape(-1, channels)
            made[:, row, column] = wanted[:, of_output, across_output].reshape(-1, width).t() @ pixels
    return made.permute(0, 3, 1, 2)


def _overlaps(kernel: int, stride: int, padding: int, size: int, outputs: int) -> list[tuple[int, tuple[slice, slice]]]:
    """Positions in the kernel that see any pixel, along one direction; for each which pixels, and for which outputs."""
    found = []
    for position in range(kernel):
        shift = position - padding  # output o sees pixel o * stride + shift
        first = max(0, -(shift // stride))
        last = min(outputs - 1, (size - 1 - shift) // stride)
        if first <= last:
            pixels = slice(first * stride + shift, last * stride + shift + 1, stride)
            found.append((position, (pixels, slice(first, last + 1))))
    return found


class _Convolution(torch.autograd.Function):
    """A convolution with zeros around, one group and no dilation, whose weights get their gradient by products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return functional.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), stride, padding = ctx.saved_tensors, ctx.stride, ctx.padding
        for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
        made_x, _, made_bias = torch.ops.aten.convolution_backward(
            gradient, x, weight, [len(weight)], stride, padding, (1, 1), False, (0, 0), 1, (for_x, False, for_bias)
        )
        made = weight_gradient(x, gradient, weight.shape[2:], stride, padding) if for_weight else None
        return made_x, made, made_bias, None, None


def _forward(convolution: nn.Conv2d, x: Tensor) -> Tensor:
    """In place of the `forward` of torch."""
    if not _is_small(convolution, x):
        return nn.Conv2d.forward(convolution, x)
    precision, bias = precision_of_products(x), convolution.bias
    made: Tensor = _Convolution.apply(
        x.to(precision),
        convolution.weight.to(precision),
        None if bias is None else bias.to(precision),
        convolution.stride,
        convolution.padding,
    )
    return made


def _is_usual(part: nn.Module) -> bool:
    if type(part) is not nn.Conv2d or is_replaced(part):
        return False
    plain = part.groups == 1 and part.dilation == (1, 1) and part.padding_mode == "zeros"
    return plain and isinstance(part.padding, tuple)  # not "same" or "valid"


def _is_small(convolution: nn.Conv2d, x: Tensor) -> bool:
    """Whether the products are the faster way, and there is a gradient to be found."""
    if not torch.is_grad_enabled() or not convolution.weight.requires_grad or torch.compiler.is_compiling():
        return False
    if x.device.type != "cpu" or x.ndim != 4 or not _are_measured(x, convolution.weight):
        return False
    if not x.is_contiguous(memory_format=torch.channels_last):  # the products would have to copy all of it
        return False
    height, width = (_outputs(convolution, direction, x.shape[direction + 2]) for direction in (0, 1))
    if min(height, width) < 1 or height * width > _MOST_PIXELS:
        return False
    multiplications = len(x) * height * width * convolution.in_channels * convolution.out_channels
    return x.shape[2:] == (1, 1) or multiplications >= _FEWEST_MULTIPLICATIONS


def _are_measured(x: Tensor, weight: Tensor) -> bool:
    """Whether the numbers are of known kinds, and torch itself would multiply them."""
    if not {x.dtype, weight.dtype, precision_of_products(x)} <= _MEASURED:
        return False
    return x.dtype == weight.dtype or torch.is_autocast_enabled("cpu")


def _outputs(convolution: nn.Conv2d, direction: int, size: int) -> int:
    """Pixels of the output along one direction."""
    padding: Any = convolution.padding
    free = size + 2 * padding[direction] - convolution.kernel_size[direction]
    return free // convolution.stride[direction] + 1
