"""Forms of the relation beyond the papers train in the loop, pass its proof, and resume to the bit."""

from __future__ import annotations

import pytest
import torch
from tiny import CLASSES, EVERYTHING, Net, SignalAt, assert_as_if_nothing_happened, loaders, newest, quiet

from relatum.objectives import CrossEntropy
from relatum.relation import BatchFormer, attach
from relatum.train import ClassificationTask, fit

FORMS = {
    "gate": BatchFormer(heads=2, dropout=0.3, gate=True, layers=2),
}


@pytest.mark.parametrize("spec", FORMS.values(), ids=FORMS.keys())
def test_interrupted_it_ends_in_the_same_bits_and_rows(tmp_path, spec):
    def run(out, display):
        torch.manual_seed(0)
        model = Net(dropout=0.4)
        built = ClassificationTask(model, CrossEntropy(), attach(model, spec, num_classes=len(CLASSES)))
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        fit(built, loaders(augment="weak", mixup=0.4, seed=3), EVERYTHING, out=tmp_path / out, display=display)
        return start

    start = run("whole", quiet())
    kept = newest(tmp_path / "whole")
    assert not [name for name, before in start.items() if torch.equal(before, kept[f"model.{name}"])], "all have moved"
    run("cut", SignalAt(7))
    run("cut", quiet())
    assert_as_if_nothing_happened(tmp_path / "cut", tmp_path / "whole")
