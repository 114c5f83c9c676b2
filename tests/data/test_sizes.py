"""Progressive resolution: which side in which epoch, what a batch becomes, what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relatum.batch import Batch
from relatum.config import DataConfig
from relatum.data import build_loaders
from relatum.data.augment.resize import resize_whole
from relatum.data.sizes import SizeSchedule, size_schedule
from relatum.errors import ConfigError


def _config(**settings):
    shapes = {"kind": "shapes", "image_size": 24, "batch_size": 16, "long_tail": "none", "workers": 0}
    return DataConfig(**{**shapes, **settings})


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [(10, [16] * 4 + [20] * 3 + [24] * 3), (4, [16, 16, 20, 24]), (1, [16]), (100, [16] * 40 + [20] * 30 + [24] * 30)],
)
def test_each_side_has_its_share_of_the_epochs(epochs, expected):
    schedule = size_schedule(_config(sizes=(16, 20, 24), size_ends=(0.4, 0.7, 1.0)), epochs)
    assert [schedule.at(epoch) for epoch in range(epochs)] == expected


def test_without_shares_the_parts_are_equal_and_without_sizes_there_is_no_schedule():
    assert size_schedule(_config(sizes=(12, 24)), 6) == SizeSchedule((12, 24), (0.5, 1.0), 6)
    assert size_schedule(_config(), 6) is None


@given(epochs=st.integers(3, 300), cuts=st.tuples(st.floats(0.05, 0.4), st.floats(0.45, 0.95)))
def test_sides_never_fall_back_and_the_last_epoch_has_the_last_side(epochs, cuts):
    schedule = SizeSchedule((8, 16, 24), (*cuts, 1.0), epochs)
    sides = [schedule.at(epoch) for epoch in range(epochs)]
    assert sides == sorted(sides)
    assert abs(sides.count(8) - cuts[0] * epochs) <= 1
    assert sides[-1] == 24 or cuts[1] * epochs > epochs - 1


def test_a_batch_is_averaged_down_and_keeps_everything_else():
    torch.manual_seed(0)
    batch = Batch(torch.randn(3, 3, 24, 24), torch.tensor([0, 1, 2]), torch.tensor([5, 6, 7]))
    schedule = SizeSchedule((12, 24), (0.5, 1.0), 2)
    small = schedule.shrink(batch, 0)
    assert small.inputs.shape == (3, 3, 12, 12)
    assert torch.equal(small.targets, batch.targets) and torch.equal(small.index, batch.index)
    torch.testing.assert_close(small.inputs.mean(), batch.inputs.mean(), atol=0.02, rtol=0)
    assert small.inputs.std() < 0.8 * batch.inputs.std(), "pixels are averaged, not picked"
    assert schedule.shrink(batch, 1) is batch


@given(epochs=st.integers(1, 60), ends=st.tuples(st.floats(0.05, 0.4), st.floats(0.45, 0.95)), part=st.floats(0, 1))
def test_work_is_the_pixels_of_every_epoch(epochs, ends, part):
    schedule = SizeSchedule((8, 16, 24), (*ends, 1.0), epochs)
    for whole in {0, epochs // 2, epochs - 1}:
        pixels = sum(schedule.at(epoch) ** 2 for epoch in range(whole)) + part * schedule.at(whole) ** 2
        assert schedule.work(whole + part) == pytest.approx(pixels / 24**2)


@pytest.mark.parametrize(("before", "after"), [((32, 32), 24), ((64, 48), 20), ((24, 24), 31), ((96, 96), 64)])
@pytest.mark.parametrize("low_precision", [False, True])
def test_a_resize_is_that_of_torch_in_double_precision_whether_or_not_autocast_is_on(before, after, low_precision):
    images = torch.rand(2, 3, *before, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", enabled=low_precision):
        small = resize_whole(images, after)
    wanted = torch.nn.functional.interpolate(images.double(), (after, after), mode="bilinear", antialias=True)
    torch.testing.assert_close(small.double(), wanted, atol=1e-5, rtol=0)


def test_the_loader_shows_each_epoch_at_its_side_and_resumes_within_it():
    loaders = build_loaders(_config(sizes=(12, 24)), epochs=2)
    small, full = list(loaders.train.epoch(0)), list(loaders.train.epoch(1))
    assert {batch.inputs.shape[-1] for batch in small} == {12}
    assert {batch.inputs.shape[-1] for batch in full} == {24}
    resumed = next(iter(loaders.train.epoch(0, len(small) - 1)))
    assert torch.equal(resumed.inputs, small[-1].inputs)
    plain = next(iter(build_loaders(_config(), epochs=2).train.epoch(0)))
    assert torch.equal(plain.targets, small[0].targets), "order and labels are those of full size"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size_ends": (1.0,)}, "there are none"),
        ({"sizes": (12, 32)}, "8 to data.image_size \\(24\\)"),
        ({"sizes": (4, 24)}, "not 4,24"),
        ({"sizes": (12, 24), "size_ends": (1.0,)}, "each of the 2 data.sizes"),
        ({"sizes": (12, 24), "size_ends": (0.5, 0.9)}, "the last of them 1"),
        ({"sizes": (12, 16, 24), "size_ends": (0.7, 0.5, 1.0)}, "rising share"),
    ],
)
def test_what_does_not_fit_together_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        size_schedule(_config(**settings), 4)
