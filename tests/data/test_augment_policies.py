"""Which operations are chosen, how often, how strong: against torchvision's tables and its transforms themselves."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import v2

from relatum.data.augment.operations import OPERATIONS, SIGNED, apply_operations, strengths
from relatum.data.augment.policies import CIFAR10_POLICY, AutoAugment, RandAugment


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_policy_is_the_published_one():
    reference = v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10)._policies
    mine = [tuple((name, chance, level) for name, chance, level in pair) for pair in CIFAR10_POLICY]
    theirs = [tuple((name, chance, level or 0) for name, chance, level in pair) for pair in reference]
    assert mine == theirs


@pytest.mark.parametrize(("reference", "bins"), [(v2.AutoAugment, 10), (v2.RandAugment, 31)])
@pytest.mark.parametrize("size", [(32, 32), (64, 48)])
def test_strengths_and_signs_equal_torchvision(reference, bins, size):
    for name, (levels, signed) in reference._AUGMENTATION_SPACE.items():
        k = OPERATIONS.index(name)
        want = levels(bins, *size)
        want = torch.zeros(bins) if want is None else want
        assert torch.equal(strengths(bins, *size)[k], want.double())
        assert bool(SIGNED[k]) == signed


def test_randaugment_has_torchvisions_operations():
    assert set(v2.RandAugment._AUGMENTATION_SPACE) == set(OPERATIONS) - {"Invert", "SolarizeAdd"}


def within(observed, expected, n):
    """Five standard deviations of a share of n draws."""
    return abs(observed - expected) <= 5 * (expected * (1 - expected) / n) ** 0.5 + 1e-12


def test_autoaugment_frequencies():
    n = 100_000
    plan = AutoAugment().sample(n, 32, 32, seeded())
    for which in range(2):
        for k, name in enumerate(OPERATIONS[1:], start=1):
            expected = sum(pair[which][1] for pair in CIFAR10_POLICY if pair[which][0] == name) / 25
            chosen = plan.operations[:, which] == k
            assert within(float(chosen.float().mean()), expected, n), name
            strong = plan.magnitudes[chosen, which]
            if SIGNED[k] and len(strong) and (strong != 0).any():
                assert within(float((strong < 0).float().mean()), float((strong != 0).float().mean()) / 2, len(strong))
            if not SIGNED[k]:
                assert (strong >= 0).all()


def test_autoaugment_pairs_stay_together():
    plan = AutoAugment().sample(20_000, 32, 32, seeded(1))
    allowed = set()
    for first, second in CIFAR10_POLICY:
        a, b = OPERATIONS.index(first[0]), OPERATIONS.index(second[0])
        allowed |= {(a, b), (a, 0), (0, b), (0, 0)}
    seen = set(map(tuple, plan.operations.tolist()))
    assert seen <= allowed
    assert len(seen) > 40
    invert_after_solarize = (OPERATIONS.index("Solarize"), OPERATIONS.index("Invert"))
    assert invert_after_solarize not in seen  # its published probability is zero


def test_randaugment_frequencies_and_level():
    n = 50_000
    plan = RandAugment(magnitude=14).sample(n, 32, 32, seeded(2))
    for which in range(2):
        share = torch.bincount(plan.operations[:, which], minlength=len(OPERATIONS)) / n
        assert OPERATIONS[14:] == ("Invert", "SolarizeAdd") and (share[14:] == 0).all()
        assert all(within(float(s), 1 / 14, n) for s in share[:14])
    table = strengths(31, 32, 32)[:, 14]
    assert torch.equal(plan.magnitudes.abs(), table[plan.operations])
    shear = plan.magnitudes[plan.operations == OPERATIONS.index("ShearX")]
    assert within(float((shear < 0).float().mean()), 0.5, len(shear))


def test_apply_is_two_passes_in_order():
    g = seeded(3)
    images = torch.randint(256, (64, 3, 16, 16), dtype=torch.uint8, generator=g)
    policy = AutoAugment()
    plan = policy.sample(64, 16, 16, g)
    first = apply_operations(images, plan.operations[:, 0], plan.magnitudes[:, 0])
    want = apply_operations(first, plan.operations[:, 1], plan.magnitudes[:, 1])
    assert torch.equal(policy.apply(images, plan), want)
    assert not torch.equal(want, first) and not torch.equal(first, images)


@pytest.mark.parametrize("name", ["auto", "rand"])
def test_pixel_statistics_equal_torchvisions_transform(name):
    """The mean and the spread of the outcome over many draws of one image agree with torchvision's transform."""
    image = (torch.arange(3 * 16 * 16).view(3, 16, 16) * 7 % 256).to(torch.uint8)
    n = 1500
    mine = AutoAugment() if name == "auto" else RandAugment(9)
    theirs = v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10) if name == "auto" else v2.RandAugment(2, 9)
    got = mine.apply(image.expand(n, -1, -1, -1), mine.sample(n, 16, 16, seeded(4))).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        want = torch.stack([theirs(image) for _ in range(n)]).float()
    for statistic in (lambda x: x.mean((1, 2, 3)), lambda x: x.std((1, 2, 3)), lambda x: x[:, 0, 5, 3]):
        a, b = statistic(got), statistic(want)
        error = (a.var() / n + b.var() / n).sqrt()
        assert abs(a.mean() - b.mean()) < 4.5 * error
        assert abs(a.std() / b.std() - 1) < 0.15
    unchanged = [(x == image).flatten(1).all(1).float().mean() for x in (got, want)]
    assert abs(unchanged[0] - unchanged[1]) < 4.5 * (0.5 / n) ** 0.5
