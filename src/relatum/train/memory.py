"""Memory that does not suffice: said with the numbers that decide it. Nothing is split behind the user's back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from relatum.errors import TrainingError
from relatum.out_of_memory import is_out_of_memory


@contextmanager
def memory_explained(
    where: str, batch: int, precision: str, *, evaluating: bool = False, related: bool = False
) -> Iterator[None]:
    """Turn a lack of memory inside into a TrainingError that says what to lower, in the order worth trying.

    Args:
        where: what is done, such as "training step 7".
        batch: images that are computed at once.
        precision: what they are computed in.
        evaluating: whether a split is evaluated.
        related: whether those images attend to each other.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            f"out of memory in {where}, with {batch} images at once. "
            f"{_cures(evaluating, batch if related else None, precision)} "
            "Checkpoints written before are good: where there is more memory, the same command goes on."
        ) from error


def _cures(evaluating: bool, relation_batch: int | None, precision: str) -> str:
    batch = "--data.eval-batch-size" if evaluating else "--data.batch-size (pretraining: --pretrain.batch-size)"
    half = [] if precision == "bfloat16" else ["set --train.precision bfloat16"]
    words = [f"Lower {batch}", "then --data.image-size", *half]
    sentence = ", ".join(words[:-1]) + f", or {words[-1]}."
    if evaluating:
        return f"{sentence} The first of them does not touch what is measured."
    if relation_batch is not None:
        return (
            f"{sentence} The relation batch is {relation_batch}: a smaller batch relates fewer samples, and splitting "
            "it with --train.accumulate changes the method, so that is never done for you."
        )
    return f"{sentence} Half the batch with twice --train.accumulate keeps the size of a step."
