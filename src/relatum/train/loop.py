"""One loop. It trains any task on any loaders; read it from top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relatum.batch import Batch
from relatum.config import EvalConfig, TrainConfig
from relatum.data.loaders import Loaders
from relatum.models.quick import quickly
from relatum.processes import is_first, share_buffers, world
from relatum.train.allocator import keep_freed_memory
from relatum.train.average import moving_average
from relatum.train.choose import settle
from relatum.train.describe import facts
from relatum.train.device import autocast, pick_device, pick_precision
from relatum.train.display import Display
from relatum.train.guard import Interrupts, check_batches
from relatum.train.keeping import Keeper
from relatum.train.memory import memory_explained
from relatum.train.meter import MetricsLog
from relatum.train.nonfinite import GoBack, LeftOut, not_finite
from relatum.train.optim import build_optimizer, learning_rate, scaled_to_batch, set_learning_rate
from relatum.train.parallel import Parallel, check_shares, epoch_seed
from relatum.train.record import RunDirectory, open_run, surroundings
from relatum.train.run import Run, finished_run, steps_per_epoch
from relatum.train.snapshot import Position
from relatum.train.steps import StepGuard
from relatum.train.task import Measured, Task


def fit(
    task: Task,
    loaders: Loaders,
    config: TrainConfig | None = None,
    *,
    out: RunDirectory | Path | str | None = None,
    evaluation: EvalConfig | None = None,
    values: Mapping[str, Any] | None = None,
    display: Display | None = None,
) -> Run:
    """Train `task` on `loaders`, evaluate it, and keep what is needed to continue after an interruption.

    Args:
        task: model and loss, for example a `ClassificationTask`.
        loaders: from `build_loaders`.
        config: optimizer, schedule and the rest.
        out: run directory. Calling again with the same directory and settings continues from its last checkpoint;
            a finished run is not trained again, unless `max_steps` ended it and is now larger. None keeps nothing.
        evaluation: shot rule and post-hoc options.
        values: further JSON values to keep in the checkpoint, such as how to build the model again.
        display: what to show; default a progress bar.
    """
    config, evaluation = config or TrainConfig(), evaluation or EvalConfig()
    if out is not None and not isinstance(out, RunDirectory):
        settings = {"train": asdict(config), "evaluate": asdict(evaluation), "task": task.fingerprint()}
        with open_run(Path(out), {**settings, "data": {"batch_size": loaders.train.batch_size}}) as opened:
            return fit(task, loaders, config, out=opened, evaluation=evaluation, values=values, display=display)
    if out is not None:
        out.check_data(loaders)
    before = finished_run(task, out, len(loaders.train), config)
    if before is not None:
        return before
    with display or Display(quiet=not is_first()) as shown, Interrupts() as interrupts:
        done = _Trainer(task, loaders, config, evaluation, out, dict(values or {}), shown).run(interrupts)
    if interrupts.requested and done.status == "finished":
        # Ctrl-C during the last evaluation: the run is complete and kept, but its caller is to stop.
        raise KeyboardInterrupt
    return done


class _Trainer:
    """The state of one `fit` call."""

    def __init__(
        self,
        task: Task,
        loaders: Loaders,
        config: TrainConfig,
        evaluation: EvalConfig,
        directory: RunDirectory | None,
        values: dict[str, Any],
        display: Display,
    ) -> None:
        check_batches(task, loaders, config)
        check_shares(loaders)
        config = scaled_to_batch(config, loaders.train.batch_size * world())
        self.task, self.loaders, self.config, self.evaluation = task, loaders, config, evaluation
        self.directory, self.display = directory, display
        if config.threads:
            torch.set_num_threads(config.threads)
        self.device = pick_device(config.device)
        self.precision = pick_precision(config.precision, self.device)
        if self.device.type == "cpu":
            keep_freed_memory()
        task.to(self.device)
        if config.channels_last:
            task.to(memory_format=torch.channels_last)
        self.parallel = Parallel(task, self.device)
        self.optimizer = build_optimizer(task.param_groups(config), config)
        self.ema = moving_average(task.model, config.ema) if config.ema else None
        self.log = MetricsLog(directory, tensorboard=config.tensorboard)
        self.steps_per_epoch = steps_per_epoch(len(loaders.train), config)
        self.images_per_batch = loaders.train.batch_size * world()
        self.position = Position()
        self.left_out = LeftOut(config.nonfinite_limit)
        average = None if self.ema is None else self.ema.module
        self.keeper = Keeper(
            directory,
            task.model,
            average,
            self.optimizer,
            self.log,
            self.left_out,
            display,
            values,
            self.images_per_batch,
        )
        self.guard = StepGuard(task, config, self.device, self.left_out, directory, display, kept=self.keeper.kept)
        self.seconds, self._clock = 0.0, 0.0

    # -- the run -----------------------------------------------------------------------------------------------

    def run(self, interrupts: Interrupts) -> Run:
        """Resume if there is something to resume, train, evaluate."""
        total = self.config.epochs * self.steps_per_epoch
        self._resume()
        if self.config.precision == "measure":
            where = (self.device, self.directory, self.display)
            self.precision = settle(self.config, self.task, self.loaders, *where, fresh=self.position.step == 0)
        self._describe("running")
        self.display.start(total, self.position.step)
        while self.position.epoch < self.config.epochs and not self._enough():
            try:
                self._train_epoch(interrupts)
            except GoBack:
                self._go_back()
                continue
            if interrupts.honoured:
                return self._stop()
            if self.position.batch == len(self.loaders.train):  # else max_steps ended it within the epoch
                self._end_epoch()
        return self._finish()

    def _train_epoch(self, interrupts: Interrupts) -> None:
        """Train what is left of the current epoch."""
        epoch, start = self.position.epoch, self.position.batch
        if start == 0:
            # Dropout and the like depend on (seed, epoch) only, so a resumed epoch repeats itself.
            torch.manual_seed(epoch_seed(self.config.seed, epoch))
        self.task.train()
        self.task.set_epoch(epoch, self.config.epochs)
        self._clock = time.perf_counter()  # a step's time begins where the last one ended: loading counts
        group: list[Batch] = []
        last = len(self.loaders.train) - 1
        for number, batch in enumerate(self.loaders.train.epoch(epoch, start), start):
            group.append(batch)
            # The last group of an epoch may be smaller; it is used, not thrown away.
            if len(group) < self.config.accumulate and number != last:
                continue
            related = self.task.relation_batch_matters
            with memory_explained(f"training step {self.position.step}", len(batch), self.precision, related=related):
                self._step(group)
            group = []
            self.position = replace(self.position, batch=number + 1)
            if interrupts.agreed() or self._enough():
                return

    def _step(self, group: list[Batch]) -> None:
        """One optimizer step on a group of micro-batches, or none where its numbers are not finite."""
        if self.left_out.holds(self.position):
            return self._count_step()
        lr = learning_rate(self.config, self._progress)
        self.task.set_progress(self._progress / self.config.epochs)
        self.guard.begin()
        parts = self._gradients(group)
        loss, gradient = sum(float(part["loss"]) for part in parts) / len(group), self._clip()
        # The one place that judges a step: what follows is the same for everyone who is told the same.
        wrong = not_finite(loss, gradient)
        if wrong:
            scalars = [{name: float(value) for name, value in part.items()} for part in parts]
            numbers = {"epoch": self._progress, "lr": lr, "loss": loss, "gradient_norm": gradient, "parts": scalars}
            self.guard.refuse(wrong, self.position, group, lambda: self._gradients(group), numbers)
            return self._count_step()
        for part, micro in zip(parts, group, strict=True):
            self.log.add(part, len(micro))
        set_learning_rate(self.optimizer, lr)
        taken = self.position.step - self.left_out.passed(self.position)
        if not taken:
            self.task.check_first_step(self.optimizer)
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update(self.task.model, step=taken + 1)
        self._count_step(lr, loss)

    def _gradients(self, group: list[Batch]) -> list[dict[str, Tensor]]:
        """Compute the gradients of a step; return the scalars that the task gave for each micro-batch."""
        self.optimizer.zero_grad(set_to_none=True)
        parts = []
        for number, micro in enumerate(group, 1):
            batch = micro.to(self.device, channels_last=self.config.channels_last)
            # Around the backward pass as well: a checkpointed block runs again there, and must do the same then.
            with self.parallel.keep_to_itself(number < len(group)), quickly(self.task):
                with autocast(self.precision, self.device):
                    output = self.parallel(batch)
                (output["loss"] / len(group)).backward()
            parts.append({name: value.detach() for name, value in output.items() if value.ndim == 0})
        return parts

    def _clip(self) -> float:
        """Return the norm of the gradient, clipped if so configured."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters])
        if self.config.clip:  # else the gradients would be multiplied by 1
            nn.utils.clip_grads_with_norm_(parameters, self.config.clip, norm)
        return float(norm)

    def _count_step(self, lr: float | None = None, loss: float = math.nan) -> None:
        """Move on by a step; one that was left out, without a learning rate, counts as well, so that epochs add up."""
        self.position = replace(self.position, step=self.position.step + 1)
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        self.seconds += seconds
        done = self.position.step
        if lr is not None:
            self.log.count(seconds, lr)
        if self.log.steps >= 50 or (self.log.steps and done % self.steps_per_epoch == 0):
            self.log.write_train(done, done / self.steps_per_epoch)
        self.display.step(done, f"loss {loss:.3f}  {self.log.images_per_second:.0f} img/s", self._seconds_left())

    @property
    def _progress(self) -> float:
        """Epochs done, with the share of the current one."""
        return self.position.epoch + self.position.batch / len(self.loaders.train)

    # -- between epochs ----------------------------------------------------------------------------------------

    def _end_epoch(self) -> None:
        self.position = Position(self.position.epoch + 1, 0, self.position.step)
        epoch, last = self.position.epoch, self.position.epoch >= self.config.epochs
        due = self.config.eval_every and epoch % self.config.eval_every == 0
        shown: dict[str, Any] = {"loss": self.log.last.get("loss", math.nan)}
        if "agreement" in self.log.last:
            shown["streams agree"] = f"{100 * self.log.last['agreement']:.1f} %"
        if due and not last and self.loaders.evals:
            # The test split is looked at during training only where there is no validation split, and never selects.
            split = "val" if "val" in self.loaders.evals else next(iter(self.loaders.evals))
            scores = self._evaluate(split, bootstrap=0)
            self.log.write_eval(split, scores.numbers(), self.position.step, float(epoch))
            shown |= scores.shown()
        if due and not last:
            self._draw()
        if epoch % self.config.save_every == 0 and not last:
            self._save()
        numbers = {**shown, "img/s": self.log.images_per_second}
        self.display.epoch(epoch, self.config.epochs, numbers, self._seconds_left())

    def _seconds_left(self) -> float:
        """What the rest of the steps will take if a pixel goes on to cost what it did."""
        total = self.config.epochs * self.steps_per_epoch
        ends = (self.position.step, min(total, self.config.max_steps or total))
        done, everything = (self.loaders.train.work(steps / self.steps_per_epoch) for steps in ends)
        return self.seconds * (everything / done - 1)

    @property
    def _measured_model(self) -> nn.Module:
        return self.ema.module if self.ema is not None else self.task.model

    def _draw(self) -> None:
        if self.directory is not None:
            self.task.draw(self._measured_model, self.loaders, self.directory.path, self.position.epoch)

    def _evaluate(self, split: str, bootstrap: int) -> Measured:
        loader, config = self.loaders.evals[split], replace(self.evaluation, bootstrap=bootstrap)
        how = {"device": self.device, "precision": self.precision, "channels_last": self.config.channels_last}
        share_buffers(self._measured_model)
        explained = memory_explained(f"the evaluation of {split}", loader.batch_size, self.precision, evaluating=True)
        with explained:
            return self.task.evaluate(self._measured_model, loader, self.loaders.prior, config, split=split, **how)

    def _enough(self) -> bool:
        return bool(self.config.max_steps) and self.position.step >= self.config.max_steps

    # -- the end -----------------------------------------------------------------------------------------------

    def _finish(self) -> Run:
        # Saved before the last rows are written: a run that goes on from here writes its rows as if it never ended.
        self._save()
        done = self.position.step / self.steps_per_epoch
        if self.log.steps:
            self.log.write_train(self.position.step, done)
        scores = {split: self._evaluate(split, self.evaluation.bootstrap) for split in self.loaders.evals}
        for split, entry in scores.items():
            self.log.write_eval(split, entry.numbers(), self.position.step, done)
        self._draw()
        if self.directory is not None:
            self.directory.write_scores({split: entry.to_dict() for split, entry in scores.items()})
        if self.left_out.places:
            self.display.say(self.left_out.sentence())
        self._describe("finished")
        self.log.close()
        return self._result("finished", scores)

    def _stop(self) -> Run:
        self._save()
        self._describe("interrupted")
        self.log.close()
        kept = "Rerun the same command to continue." if self.directory is not None else "Nothing was kept (out=None)."
        self.display.say(f"Stopped after step {self.position.step}. {kept}")
        return self._result("interrupted", {})

    def _result(self, status: str, scores: dict[str, Measured]) -> Run:
        path = None if self.directory is None else self.directory.path
        return Run(scores, status, self.position.step, self.seconds, path)

    # -- keeping and continuing --------------------------------------------------------------------------------

    def _save(self) -> None:
        self.keeper.save(self.position, self.seconds)

    def _resume(self) -> None:
        """Continue what the run directory holds; a run that may go back can go back to its start, too."""
        if not self._restore() and self.config.on_nonfinite == "rollback":
            self._save()

    def _go_back(self) -> None:
        """Go on from the last checkpoint, and pass over what was left out since."""
        places = self.left_out.places
        self._restore()  # a run that may go back has kept its very start
        self.left_out.places = places

    def _restore(self) -> bool:
        """Put back the newest checkpoint that is whole; False if there is none."""
        found = self.keeper.restore(self.config.accumulate, self.steps_per_epoch)
        if found is not None:
            self.position, self.seconds = found
            # Of changed data, as allowed, an epoch may have become shorter.
            self.position = replace(self.position, batch=min(self.position.batch, len(self.loaders.train)))
        return found is not None

    def _describe(self, status: str) -> None:
        if self.directory is None:
            return
        first = {} if "versions" in self.directory.manifest else surroundings()
        images = self._progress * len(self.loaders.train) * self.images_per_batch
        self.directory.update_manifest(
            **first,
            **facts(self.task, self.loaders, self.config, self.device, self.precision),
            **self.left_out.entries(),
            status=status,
            steps=self.position.step,
            seconds=round(self.seconds, 3),
            images_per_second=round(images / self.seconds, 1) if self.seconds else 0.0,
        )
