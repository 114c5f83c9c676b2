"""The task of masked pretraining: predict what is hidden, and show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from relatum.batch import Batch
from relatum.config import EvalConfig
from relatum.data.loaders import Loaders
from relatum.errors import DataError
from relatum.models.attention import quick_attention
from relatum.models.mae import MaskedAutoencoder, masked_mse, patchify, psnr, reconstruction_loss
from relatum.models.mae.masks import MASKS
from relatum.models.mae.patches import to_pixels
from relatum.models.mae.pictures import reconstruction_picture
from relatum.models.shares import mean_in_shares, useful_shares
from relatum.prior import ClassPrior
from relatum.processes import total, world
from relatum.relation import Presence, Relation
from relatum.train.device import autocast
from relatum.train.related import RelatedTask, StreamLoss

# The mask under which reconstructions are measured and drawn: the same at every epoch, so that they compare.
_MASK_SEED = 0


@dataclass(frozen=True)
class Reconstruction:
    """How well hidden patches are predicted, under a mask that is the same at every epoch.

    Args:
        split: name of the data.
        samples: how many images.
        loss: the training loss of the plain model.
        mse: mean squared error of the hidden pixels, on the scale 0 to 1. With normalised pixels the predictions were
            brought to that scale by the statistics of the true patches.
        psnr: the same in decibels.
        mask: kind of mask.
        ratio: share of the patches that was hidden.
        pixels: what is predicted, "normalised" or "raw".
    """

    split: str
    samples: int
    loss: float
    mse: float
    psnr: float
    mask: str
    ratio: float
    pixels: str
    kind: str = "reconstruction"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self)

    def numbers(self) -> dict[str, float | None]:
        """Return what a log of the training keeps."""
        return {"loss": self.loss, "mse": self.mse, "psnr": self.psnr}

    def shown(self) -> dict[str, str]:
        """Return what a person sees while training."""
        return {"masked loss": f"{self.loss:.4f}", "PSNR": f"{self.psnr:.2f} dB"}


class MaskedTask(RelatedTask):
    """Pretrain a masked autoencoder, with or without a relation in its decoder.

    All streams of a relation see one mask: what is hidden from an image is hidden from its related twin.

    Args:
        model: the autoencoder.
        relation: the relation attached to it, or None.
        mean: of each colour channel, as in the preprocessing, to measure in pixels.
        std: of each colour channel.
        streams: weights of the plain and the related loss, as in `ClassificationTask`.
        relation_lr_scale: learning rate of the relation over that of the model.
        relation_weight_decay: weight decay of the relation; None means that of the model.
        presence: when the related stream takes part; None means always.
        pictures: images in the picture that is drawn at each evaluation; 0 draws none.
    """

    model: MaskedAutoencoder
    # Whether visible patches, which the loss does not look at, are left undecoded where no relation needs them.
    hidden_only = True
    # Whether each thread of a CPU computes a share of the batch, where that is of use.
    in_shares = True

    def __init__(
        self,
        model: MaskedAutoencoder,
        relation: Relation | None = None,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        streams: StreamLoss = "mean",
        relation_lr_scale: float = 0.1,
        relation_weight_decay: float | None = None,
        presence: Presence | None = None,
        pictures: int = 8,
    ) -> None:
        super().__init__(
            model,
            relation,
            streams=streams,
            relation_lr_scale=relation_lr_scale,
            relation_weight_decay=relation_weight_decay,
            presence=presence,
        )
        self.mean, self.std, self.pictures = mean, std, pictures

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss over all streams and, with two, the loss of each."""
        if self.relation is None:
            return {"loss": self._plain_loss(batch.inputs)}
        output = self.model(batch.inputs)
        predictions = self.relation.streams(output.prediction)
        targets, masks = self.relation.stream_targets(output.targets), self.relation.stream_targets(output.mask)
        losses = {name: reconstruction_loss(p, targets[name], masks[name]) for name, p in predictions.items()}
        parts = {f"loss/{name}": loss.detach() for name, loss in losses.items()}
        return {"loss": self.over_streams(losses), **parts}

    def _plain_loss(self, images: Tensor) -> Tensor:
        model, parameters = self.model, [p for p in self.model.parameters() if p.requires_grad]
        # Other processes wait for gradients one by one; what is measured needs none.
        alone = self.in_shares and self.training and torch.is_grad_enabled() and world() == 1
        shares = useful_shares(model, images) if alone else 1
        if shares == 1:
            return model(images, hidden_only=self.hidden_only).loss
        noise = MASKS[model.mask](len(images), model.grid, None, images.device)  # as the model would draw it

        def loss(images: Tensor, noise: Tensor) -> Tensor:
            return model(images, noise=noise, hidden_only=self.hidden_only).loss

        with quick_attention(model):  # here: inside, the threads would put it on and take it off each other's layers
            return mean_in_shares(loss, parameters, (images, noise), shares)

    @torch.inference_mode()
    def evaluate(
        self, model: nn.Module, loader: Iterable[Batch], prior: ClassPrior, config: EvalConfig, **how: Any
    ) -> Reconstruction:
        """Measure the reconstruction of a split; its labels are not looked at."""
        training, sums = model.training, torch.zeros(3, dtype=torch.float64)
        model.eval()
        try:
            for batch in loader:
                images = batch.to(how["device"], channels_last=how["channels_last"]).inputs
                with autocast(how["precision"], how["device"]):
                    output = model(images, noise=self._mask_noise(batch.index))
                means = torch.stack([output.loss, self._pixel_error(model, output, images)]).double().cpu()
                sums += torch.cat([means, torch.ones(1)]) * len(batch)
        finally:
            model.train(training)
        if getattr(loader, "world", 1) > 1:  # each process has measured its share
            sums = total(sums)
        samples = int(sums[2])
        if not samples:
            raise DataError("the evaluation loader is empty; check that the split has samples.")
        loss, mse = sums[:2] / samples
        settings = (self.model.mask, self.model.ratio, "normalised" if self.model.normalised else "raw")
        return Reconstruction(how["split"], samples, float(loss), float(mse), float(psnr(mse)), *settings)

    def _mask_noise(self, index: Tensor) -> Tensor:
        """Noise (N, L) that depends on the places of the images in the split only, not on who else is in the batch."""
        draw, grid, cpu = MASKS[self.model.mask], self.model.grid, torch.device("cpu")
        seeds = (_MASK_SEED + 1_000_003 * int(place) for place in index)
        return torch.cat([draw(1, grid, Generator().manual_seed(seed), cpu) for seed in seeds])

    def _pixel_error(self, model: Any, output: Any, images: Tensor) -> Tensor:
        truth = to_pixels(patchify(images.float(), model.patch), self.mean, self.std)
        drawn = to_pixels(model.restore(output.prediction, images.float()), self.mean, self.std)
        return masked_mse(drawn, truth, output.mask).mean()

    def read_scores(self, entry: Mapping[str, Any]) -> Reconstruction:
        """Undo `Reconstruction.to_dict`."""
        return Reconstruction(**entry)

    def draw(self, model: nn.Module, loaders: Loaders, folder: Path, epoch: int) -> None:
        """Write pictures/epoch-….png: originals, masked images and reconstructions, always of the same images."""
        if not self.pictures:
            return
        source = next(iter(loaders.evals.values()), loaders.train).source
        # Spread over the split: files are often sorted by class.
        chosen = np.linspace(0, len(source) - 1, min(self.pictures, len(source))).round().astype(int)
        images = torch.stack([loaders.preprocess(source.load(int(i))) for i in chosen])
        autoencoder: Any = model
        picture = reconstruction_picture(autoencoder, images, self.mean, self.std, seed=_MASK_SEED)
        (folder / "pictures").mkdir(exist_ok=True)
        picture.save(folder / "pictures" / f"epoch-{epoch:04d}.png")

    def fingerprint(self) -> dict[str, Any]:
        """Enough of the task to notice that a run directory is used for another."""
        masked = {name: getattr(self.model, name) for name in ("mask", "ratio", "normalised")}
        return {**super().fingerprint(), **masked}
