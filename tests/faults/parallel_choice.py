"""Two processes that measure different speeds: run in each process, it prints the precision it trained in.

The relation gathers over the processes, so that an unequal number of passes would leave one of them waiting.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import torch
from parallel_training import DATA, TRAIN, flat

from relatum import BatchFormer, attach, loaders_from_splits, processes
from relatum.data import from_arrays
from relatum.objectives import CrossEntropy
from relatum.train import ClassificationTask, Display, choose, fit


def seconds(task, batch, device, setting) -> float:
    """Pass for pass as measured, but the first process finds float32 slow, and the other bfloat16."""
    taken(task, batch, device, setting)
    slow = "float32" if processes.is_first() else "bfloat16"
    return 2.0 if setting.precision == slow else 1.0


def main() -> None:
    processes.join()
    warnings.simplefilter("ignore")
    choose._seconds = seconds
    random = np.random.default_rng(0)
    source = from_arrays(random.integers(0, 256, (32, 16, 16, 3), dtype=np.uint8), np.arange(32) % 4, list("abcd"))
    loaders = loaders_from_splits({"train": source}, replace(DATA, batch_size=8))
    model = flat()
    task = ClassificationTask(model, CrossEntropy(), attach(model, BatchFormer(dropout=0.0, gather=True)))
    seen = set()
    model[-1].register_forward_hook(lambda module, given, output: seen.add(output.dtype))
    measured = choose.measure

    def forget(*words: object) -> object:
        answer = measured(*words)
        seen.clear()  # what follows is the training
        return answer

    choose.measure = forget
    fit(task, loaders, replace(TRAIN, precision="measure", epochs=1, ema=0.0), display=Display(quiet=True))
    print(processes.rank(), *(str(kind).removeprefix("torch.") for kind in seen))
    processes.leave(0)


taken = choose._seconds
if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
