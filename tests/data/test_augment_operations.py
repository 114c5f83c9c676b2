"""Each operation against torchvision's functions (an independent implementation) or PIL, image by image."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms.v2 import functional as tv

from relatum.data.augment import colour
from relatum.data.augment.geometric import affine
from relatum.data.augment.operations import OPERATIONS, affine_matrices, apply_operations, strengths


def some_images(n=24, h=32, w=32, seed=0):
    """Smooth and noisy images, a flat one, and one with few values."""
    g = torch.Generator().manual_seed(seed)
    small = torch.rand(n, 3, 5, 5, generator=g)
    smooth = torch.nn.functional.interpolate(small, (h, w), mode="bilinear") * 255
    images = (smooth + 20 * torch.randn(n, 3, h, w, generator=g)).clamp(0, 255).to(torch.uint8)
    images[0] = 77
    images[1] = (images[1] // 128) * 100
    return images


def torchvision_result(image, name, m):
    match name:
        case "Identity":
            return image
        case "ShearX" | "ShearY":
            degrees = math.degrees(math.atan(m))
            shear = [degrees, 0.0] if name == "ShearX" else [0.0, degrees]
            return tv.affine(image, angle=0.0, translate=[0, 0], scale=1.0, shear=shear, center=[0, 0])
        case "TranslateX":
            return tv.affine(image, angle=0.0, translate=[int(m), 0], scale=1.0, shear=[0.0, 0.0])
        case "TranslateY":
            return tv.affine(image, angle=0.0, translate=[0, int(m)], scale=1.0, shear=[0.0, 0.0])
        case "Rotate":
            return tv.rotate(image, angle=m)
        case "Brightness":
            return tv.adjust_brightness(image, 1.0 + m)
        case "Color":
            return tv.adjust_saturation(image, 1.0 + m)
        case "Contrast":
            return tv.adjust_contrast(image, 1.0 + m)
        case "Sharpness":
            return tv.adjust_sharpness(image, 1.0 + m)
        case "Posterize":
            return tv.posterize(image, int(m))
        case "Solarize":
            return tv.solarize(image, 255.0 * m)
        case "AutoContrast":
            return tv.autocontrast(image)
        case "Equalize":
            return tv.equalize(image)
        case "Invert":
            return tv.invert(image)


def strengths_of(name, n, h, w):
    """All 31 levels of an operation, with both signs where it has them, over n images."""
    levels = strengths(31, h, w)[OPERATIONS.index(name)]
    both = torch.cat([levels, -levels]) if OPERATIONS.index(name) in range(1, 10) else levels
    return both.repeat(-(-n // len(both)))[:n] if n >= len(both) else both[torch.linspace(0, len(both) - 1, n).long()]


def source_ties(name, m, h, w):
    """Places whose source lies half-way between two pixels (to float32): nearest neighbour may take either."""
    operations = torch.full((len(m),), OPERATIONS.index(name))
    y, x = torch.meshgrid(torch.arange(h) - (h - 1) / 2, torch.arange(w) - (w - 1) / 2, indexing="ij")
    places = torch.stack([x, y, torch.ones_like(x)]).double().flatten(1)
    source = affine_matrices(operations, m, h, w) @ places + torch.tensor([[(w - 1) / 2], [(h - 1) / 2]])
    return ((source.frac().abs() - 0.5).abs() < 1e-4).any(1).view(-1, h, w)


GEOMETRIC = ("ShearX", "ShearY", "Rotate")
# A blend rounds one product or one sum more or less than torchvision's: a pixel on the edge may fall to the next grey.
BLENDS = ("Color", "Contrast", "Sharpness")


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "SolarizeAdd"])  # torchvision has none
def test_operation_equals_torchvision(name, size):
    images = some_images(62, *size)
    m = strengths_of(name, len(images), *size)
    got = apply_operations(images, torch.full((len(images),), OPERATIONS.index(name)), m)
    want = torch.stack([torchvision_result(image, name, float(s)) for image, s in zip(images, m, strict=True)])
    difference = (got.int() - want.int()).abs()
    if name in GEOMETRIC:
        ties = source_ties(name, m, *size)
        assert ties.float().mean() < 0.05
        assert (difference.amax(1)[~ties] == 0).all()
    elif name in BLENDS:
        assert difference.max() <= 1
        assert (difference > 0).float().mean() < 5e-3
    else:
        assert torch.equal(got, want)
    if name != "Identity":
        assert not torch.equal(want, images)


def test_each_image_gets_its_own_operation_and_the_order_stays():
    images = some_images(45)
    operations = torch.arange(45) % len(OPERATIONS)
    magnitudes = strengths(10, 32, 32)[operations, torch.arange(45) % 10]
    before = images.clone()
    got = apply_operations(images, operations, magnitudes)
    alone = [apply_operations(images[i : i + 1], operations[i : i + 1], magnitudes[i : i + 1]) for i in range(45)]
    assert torch.equal(got, torch.cat(alone))
    assert torch.equal(images, before)


def test_affine_against_a_loop_in_float64():
    images = some_images(6, 9, 11)
    g = torch.Generator().manual_seed(1)
    matrices = torch.eye(2, 3, dtype=torch.float64) + 0.4 * torch.randn(6, 2, 3, generator=g, dtype=torch.float64)
    got = affine(images, matrices)
    for n in range(6):
        for row in range(9):
            for column in range(11):
                place = torch.tensor([column - 5.0, row - 4.0, 1.0], dtype=torch.float64)
                x, y = (matrices[n] @ place + torch.tensor([5.0, 4.0], dtype=torch.float64)).tolist()
                x, y = round(x), round(y)
                inside = 0 <= x < 11 and 0 <= y < 9
                want = images[n, :, y, x] if inside else torch.zeros(3, dtype=torch.uint8)
                assert torch.equal(got[n, :, row, column], want)


def test_rotation_and_shear_turn_the_same_way_as_torchvision():
    image = torch.zeros(1, 3, 33, 33, dtype=torch.uint8)
    image[..., 16, 30] = 255
    for name, m in (("Rotate", 25.0), ("ShearX", 0.3), ("ShearY", 0.3)):
        moved = affine(image, affine_matrices(torch.tensor([OPERATIONS.index(name)]), torch.tensor([m]), 33, 33))
        assert torch.equal(moved[0], torchvision_result(image[0], name, m))
        assert not torch.equal(moved, image)


@pytest.mark.parametrize("name", ["autocontrast", "equalize", "invert"])
def test_operations_without_strength_equal_pil(name):
    images = some_images(8)
    got = getattr(colour, name)(images)
    for image, mine in zip(images, got, strict=True):
        pil = Image.fromarray(image.permute(1, 2, 0).numpy())
        want = torch.from_numpy(np.array(getattr(ImageOps, name)(pil))).permute(2, 0, 1)
        # PIL's autocontrast multiplies by a reciprocal; a pixel on the edge may be one grey level away.
        assert (mine.int() - want.int()).abs().max() <= (1 if name == "autocontrast" else 0)


def test_sharpness_leaves_tiny_images_and_the_frame_alone():
    tiny = some_images(3, 2, 9)
    assert torch.equal(colour.sharpness(tiny, torch.zeros(3)), tiny)
    images = some_images(4)
    blurred = colour.sharpness(images, torch.zeros(4))
    assert not torch.equal(blurred[2:, :, 1:-1, 1:-1], images[2:, :, 1:-1, 1:-1])
    assert torch.equal(blurred[:, :, 0], images[:, :, 0])


def test_jitter_equals_torchvision_in_the_drawn_order():
    images = some_images(30)
    jitter = colour.ColorJitter()
    factors, order = jitter.sample(30, 16, 16, torch.Generator().manual_seed(0))
    got = jitter.apply(images, (factors, order))
    functions = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation)
    for i in range(30):
        want = images[i]
        for which in order[i].tolist():
            want = functions[which](want, float(factors[i, which]))
        assert (got[i].int() - want.int()).abs().max() <= 3  # three roundings, each one grey level at most
    assert factors.min() >= 0.6 and factors.max() <= 1.4
    assert len({tuple(o) for o in order.tolist()}) == 6
