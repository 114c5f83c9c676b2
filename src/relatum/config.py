"""What can be set: frozen dataclasses, one per room, with types, ranges and a sentence each.

This file imports nothing heavy: the command line parses and checks before torch is loaded.
`config_files.py` reads these from recipe files and writes them back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


def ranged(default: Any, low: float | None = None, high: float | None = None) -> Any:
    """A dataclass field whose value must lie in [low, high]; `config_files.check` enforces it."""
    return field(default=default, metadata={"low": low, "high": high})


DataKind = Literal["auto", "folder", "csv", "list", "cifar10", "cifar100", "shapes"]
Profile = Literal["none", "exponential", "step", "pareto", "balanced"]
Augmentation = Literal["none", "weak", "crop", "autoaugment", "randaugment", "imagenet", "deit"]
Normalisation = Literal["imagenet", "cifar", "half", "imagenet-lt", "imagenet-bal", "inaturalist18"]
Stage = Literal["pretrain", "finetune"]
SamplerName = Literal[
    "instance", "class-balanced", "square-root", "progressive", "effective-number", "repeat-factor",
]  # fmt: skip
ObjectiveName = Literal[
    "cross-entropy", "balanced-softmax", "logit-adjusted", "vector-scaling", "focal", "class-balanced", "ldam",
    "bce", "balanced-bce", "lade", "influence-balanced",
]  # fmt: skip


@dataclass(frozen=True)
class DataConfig:
    """Which samples, in which order, changed how."""

    kind: DataKind = "auto"
    """Layout of the data. auto looks at `root`: a CSV file, CIFAR pickles, or a folder of class folders."""
    root: str = ""
    """Folder of images, CSV file, folder that holds the CIFAR pickles, or image root of the lists."""
    train_list: str = ""
    """`path label` list of the training images, plain or gzipped (kind list)."""
    val_list: str = ""
    """`path label` list of the validation images (kind list)."""
    test_list: str = ""
    """`path label` list of the test images (kind list)."""
    class_names: str = ""
    """File with one class name per line, in the order of the class ids. Default: taken from the data."""
    val_fraction: float = ranged(0.2, 0.0, 0.9)
    """Share of each class held out for validation when the data has no validation or test split."""
    long_tail: Profile = "none"
    """Cut the training split to a long-tailed profile, or to the same number of images in each class (balanced)."""
    imbalance: float = ranged(100.0, 1.0)
    """Largest over smallest class count of that profile; balanced has none."""
    largest: int = ranged(0, 0)
    """Images of the largest class in that profile, of every class if balanced; 0 takes what the largest class has (of a
    balanced profile, what the smallest has)."""
    choice: Literal["seeded", "first"] = "seeded"
    """Which images of a class stay: a seeded draw, or the first ones in file order."""
    subset_seed: int = ranged(0, 0, 2**32 - 1)
    """Seed of that draw and of the hold-out; the same for all training seeds, so that runs compare."""
    image_size: int = ranged(32, 8)
    """Side of the square image the model sees."""
    sizes: tuple[int, ...] = ()
    """Progressive resolution: sides at which training images are shown, one after the other; empty: image_size always.
    Evaluation has image_size."""
    size_ends: tuple[float, ...] = ()
    """Share of the epochs at which each of `sizes` ends, the last 1; empty: equal parts."""
    resize: int = ranged(0, 0)
    """Shorter side before the centre crop at evaluation; 0 means image_size (small images) or image_size / 0.875."""
    normalise: Normalisation = "imagenet"
    """Channel mean and standard deviation."""
    augment: Augmentation = "weak"
    """weak: pad-crop, flip. crop: resized crop of a fifth of the image or more, flip. autoaugment, randaugment: weak,
    then the policy. imagenet: resized crop, flip, jitter. deit: resized crop, flip, randaugment."""
    magnitude: int = ranged(9, 0, 30)
    """Strength of randaugment."""
    policy_end: float = ranged(1.0, 0.0, 1.0)
    """Share of the epochs after which autoaugment, randaugment or deit rest; all else goes on. 1: never rest."""
    cutout: int = ranged(0, 0)
    """Side of one square hole cut out of each training image; 0 is off."""
    erasing: float = ranged(0.0, 0.0, 1.0)
    """Probability of random erasing."""
    repeats: int = ranged(1, 1)
    """Repeated augmentation: views of each drawn image, side by side in a batch; an epoch keeps its length."""
    mixup: float = ranged(0.0, 0.0)
    """Alpha of mixup; 0 is off."""
    cutmix: float = ranged(0.0, 0.0)
    """Alpha of cutmix; 0 is off. With both on, each batch takes one of them by a fair coin."""
    mix_rate: float = ranged(1.0, 0.0, 1.0)
    """Share of the batches that mixup or cutmix mixes; the others stay as they are."""
    mix_end: float = ranged(1.0, 0.0, 1.0)
    """Share of the epochs after which mixup and cutmix rest; all else goes on. 1: never rest."""
    sampler: SamplerName = "instance"
    """Order and repetition of the training samples."""
    drs_start: float = ranged(1.0, 0.0, 1.0)
    """Deferred re-sampling: class-balanced sampling from this share of the epochs on; 1 is off."""
    allow_double: bool = False
    """Allow a balanced sampler together with a balanced objective (double correction) without a warning."""
    batch_size: int = ranged(128, 1)
    """Images per step and process; with a relation these are the samples that attend to each other."""
    eval_batch_size: int = ranged(256, 1)
    """Images per step at evaluation."""
    workers: int = ranged(2, 0)
    """Loader processes for images that do not live in memory."""
    memory: Literal["auto", "always", "never"] = "auto"
    """Keep decoded images in memory as uint8. auto: when they are small and fit into 2 GB."""
    bad_images: Literal["raise", "quarantine"] = "raise"
    """Images that cannot be read: stop and name the first, or set all aside before training, count and list them."""
    bad_limit: float = ranged(0.05, 0.0, 1.0)
    """Largest share of a split, or of a class of ten images or more, that quarantine may set aside before it stops."""
    allow_outside: bool = False
    """Let lists and CSV files name images outside their image root: absolute paths, `..`, or links that lead away."""


@dataclass(frozen=True)
class ModelConfig:
    """From pixels to logits."""

    name: str = "resnet18"
    """A timm model name, or resnet20/32/44/56-cifar, resnet10, fastnet-s/m/l/experts, or a small ViT (vit-nano-p4)."""
    head: Literal["linear", "cosine"] = "linear"
    """Classifier: linear, or cosine similarity times a scale (needed by ldam)."""
    scale: float = ranged(30.0, 0.0)
    """Scale of the cosine classifier."""
    weights: str = ""
    """Local file with weights to start from (safetensors, or pth read with weights_only)."""
    encoder: str = ""
    """Pretrained encoder of a ViT to start from: a run directory with a pretraining stage, or a file (public MAE
    checkpoints, ours, or a plain ViT). The classifier starts anew; positions are resized."""
    pool: Literal["default", "token", "avg"] = "default"
    """What a ViT hands to its classifier: the class token, or the mean of the patches, normalised anew (avg)."""
    head_std: float = ranged(-1.0, -1.0)
    """Standard deviation of the classifier's first weights (truncated normal, bias 0); -1 keeps the model's own."""
    head_bias: Literal["model", "log(C-1)"] = "model"
    """Start of the classifier's bias: the model's own, or -log(C-1), where a sigmoid says 1/C for each of C classes."""
    freeze: Literal["none", "backbone"] = "none"
    """backbone: train the classifier (and the relation) on frozen features; needs weights or an encoder."""
    drop_rate: float = ranged(0.0, 0.0, 1.0)
    """Dropout before the classifier, for timm models that have it."""
    drop_path: float = ranged(0.0, 0.0, 1.0)
    """Stochastic depth: the rate at the last block, rising linearly from 0 at the first, for timm models."""


@dataclass(frozen=True)
class RelationConfig:
    """Attention over the batch, while training only."""

    name: Literal["none", "batchformer", "batchformer-v2"] = "none"
    """none: plain training. batchformer: image level, before the classifier. batchformer-v2: tokens or pixels, after
    the layers of `at`."""
    at: tuple[str, ...] = ()
    """Layers whose output is related (batchformer-v2): names, ranges such as blocks.3-6, all, last. Default: last."""
    share: bool = False
    """One module for all of those layers instead of one each."""
    variant: Literal["auto", "paper", "stable"] = "auto"
    """Encoder layer: as in the papers, or the one that stays finite at every depth. auto: paper for batchformer, stable
    for batchformer-v2."""
    layers: int = ranged(1, 1)
    """Encoder layers over the batch."""
    heads: int = ranged(0, 0)
    """Attention heads; must divide the feature width. 0: 4 for batchformer, those of the model for batchformer-v2."""
    hidden: int = ranged(0, 0)
    """Feed-forward width; 0 means the feature width (paper), or no feed-forward part (stable)."""
    dropout: float = ranged(0.5, 0.0, 1.0)
    """Dropout inside the relation."""
    tokens: Literal["all", "class", "patch"] = "all"
    """Which tokens are related (batchformer-v2)."""
    related_fraction: float = ranged(1.0, 0.01, 1.0)
    """Share of the batch, drawn anew each step, that forms the related stream; it attends to the whole batch."""
    shared_classifier: bool = True
    """Plain and related features share the classifier. False: related features replace the plain ones (batchformer)."""
    two_streams: bool = True
    """Keep the plain stream beside the related one. False: related features replace it (batchformer-v2)."""
    streams: Literal["mean", "released"] = "mean"
    """Loss over the two streams: their weighted mean, or 1.5 x their sum as in the released code."""
    related_weight: float = ranged(0.5, 0.0, 1.0)
    """Weight of the related stream in the mean; the plain one has the rest. f / (1 + f) suits a related_fraction f."""
    fade_start: float = ranged(1.0, 0.0, 1.0)
    """Share of the epochs from which that weight falls linearly, in favour of the plain stream."""
    fade_end: float = ranged(1.0, 0.0, 1.0)
    """Share of the epochs at which it is 0; from there on the related stream is not computed. 1 and 1: no fading."""
    lr_scale: float = ranged(0.1, 0.0)
    """Learning rate of the relation over that of the model."""
    weight_decay: float = ranged(-1.0, -1.0)
    """Weight decay of the relation; -1 means that of the model."""
    gather: bool = False
    """With several processes: relate the samples of all of them, with exact gradients, not those of each on its own."""


@dataclass(frozen=True)
class ObjectiveConfig:
    """What we ask for."""

    name: ObjectiveName = "cross-entropy"
    """The training loss."""
    label_smoothing: float = ranged(0.0, 0.0, 0.99)
    """Share of each target spread over all classes."""
    tau: float = ranged(1.0)
    """Strength of the prior (balanced-softmax has 1 by definition; logit-adjusted, vector-scaling, balanced-bce)."""
    gamma: float = ranged(-1.0, -1.0)
    """Focusing power of focal (-1: 1.0), exponent of vector-scaling (-1: 0.3)."""
    beta: float = ranged(0.9999, 0.0, 0.9999999)
    """Effective-number parameter of class-balanced and of deferred re-weighting."""
    base: Literal["softmax", "focal", "sigmoid", "sigmoid-focal"] = "softmax"
    """The loss that class-balanced re-weights."""
    activation: Literal["softmax", "sigmoid"] = "softmax"
    """What focal makes of the logits."""
    margin: float = ranged(0.5, 0.0)
    """Largest margin of ldam."""
    scale: float = ranged(30.0, 0.0)
    """Logit scale of ldam; must equal that of the cosine classifier, model.scale."""
    shift: Literal["none", "log(C-1)"] = "none"
    """Constant in the bias of balanced-bce, C being the number of classes; it changes where training starts."""
    bias_prior: Literal["implied", "counts"] = "implied"
    """Prior in the bias of balanced-bce under label smoothing: that of the smoothed targets, or of the labels."""
    alpha: float = ranged(-1.0, -1.0)
    """Weight of the regulariser of lade (-1: 0.1), factor of influence-balanced (-1: 1000)."""
    penalty: float = ranged(0.01, 0.0)
    """Weight of the squared normalisers in the regulariser of lade."""
    importance: Literal["sample", "released"] = "sample"
    """Importance weights of lade: by the class of the sample, or by that of the logit as in the released code."""
    ib_start: float = ranged(0.5, 0.0, 1.0)
    """Share of the epochs after which influence-balanced is more than cross-entropy."""
    influence: Literal["constant", "released"] = "constant"
    """Whether influence-balanced takes the influence as a number, or differentiates it as the released code does."""
    drw_start: float = ranged(1.0, 0.0, 1.0)
    """Deferred re-weighting: effective-number class weights from this share of the epochs on; 1 is off."""


@dataclass(frozen=True)
class TrainConfig:
    """One loop."""

    epochs: int = ranged(90, 1)
    """Passes over the training samples."""
    optimizer: Literal["sgd", "adamw", "muon"] = "sgd"
    """The optimizer. muon: orthogonal steps for the matrices and convolutions inside the model, adamw for the rest."""
    nesterov: bool = False
    """Nesterov's momentum for sgd and muon: look a step ahead. Off in the papers."""
    lr: float = ranged(0.1, 0.0)
    """Peak learning rate."""
    lr_batch: int = ranged(0, 0)
    """Images per step (batch_size x accumulate x processes) that `lr` is meant for: with twice as many, the rate
    doubles. 0: as it is."""
    momentum: float = ranged(0.9, 0.0, 1.0)
    """Momentum of sgd and muon; first beta of adamw."""
    beta2: float = ranged(0.999, 0.0, 1.0)
    """Second beta of adamw."""
    adamw_scale: float = ranged(0.04, 0.0)
    """With muon: learning rate of what adamw trains (classifier, norms, biases, relation) over that of the rest."""
    weight_decay: float = ranged(5e-4, 0.0)
    """Weight decay of matrices; see decay_all."""
    layer_decay: float = ranged(1.0, 0.0, 1.0)
    """Learning rate of each layer over that of the next one, from the head down to the stem; 1 is off."""
    decay_all: bool = True
    """Also decay biases and normalisation parameters, as the papers' SGD recipes do."""
    schedule: Literal["cosine", "linear", "steps", "constant"] = "cosine"
    """Learning rate after the warm-up."""
    warmup_epochs: float = ranged(0.0, 0.0)
    """Epochs of linear warm-up."""
    warmup_start: float = ranged(0.1, 0.0, 1.0)
    """Learning rate at the start of the warm-up over the peak."""
    steps: tuple[float, ...] = (0.8, 0.9)
    """Shares of the epochs at which schedule steps multiplies the rate by step_factor."""
    step_factor: float = ranged(0.1, 0.0, 1.0)
    """That factor."""
    min_lr: float = ranged(0.0, 0.0)
    """Final learning rate of the cosine, or of linear."""
    clip: float = ranged(0.0, 0.0)
    """Largest gradient norm; 0 is off."""
    accumulate: int = ranged(1, 1)
    """Micro-batches per optimizer step. With a relation this changes the mathematics (a warning says so)."""
    ema: float = ranged(0.0, 0.0, 0.999999)
    """Decay of the exponential moving average of the weights, which is then what is evaluated; 0 is off. It reaches
    over a tenth of the steps taken so far at most."""
    precision: Literal["float32", "bfloat16", "auto", "measure"] = "auto"
    """bfloat16 autocast; auto uses it where the hardware gains, measure where a short trial before the first step does,
    which also settles the threads if those are 0."""
    channels_last: bool = True
    """Memory layout of images and convolutions."""
    seed: int = ranged(0, 0, 2**32 - 1)
    """Seed of initialisation, order and augmentation."""
    eval_every: int = ranged(1, 0)
    """Epochs between evaluations during training; 0 evaluates at the end only."""
    save_every: int = ranged(1, 1)
    """Epochs between checkpoints; one is always written at the end and at Ctrl-C."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    threads: int = ranged(0, 0)
    """Torch threads on the CPU; 0 leaves torch's choice."""
    tensorboard: bool = False
    """Also write TensorBoard files (needs the extra `track`)."""
    max_steps: int = ranged(0, 0)
    """Stop after this many optimizer steps, left-out ones too; 0 is off. The schedule is not shortened."""
    on_nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    """At a loss or gradient that is not finite: stop, leave the batch out, or go back to the last checkpoint and leave
    the batch out there."""
    nonfinite_limit: int = ranged(10, 1)
    """How often skip or rollback may do so in a run before it stops after all."""


@dataclass(frozen=True)
class PretrainConfig:
    """A first stage without labels: hide most of an image, predict it. Seed, device, precision: those of train."""

    method: Literal["none", "mae"] = "none"
    """none: there is no first stage. mae: masked autoencoder; needs a ViT."""
    root: str = ""
    """Images to pretrain on, if not those of data: a folder of class folders, or the image root of the list."""
    train_list: str = ""
    """`path label` list of the images to pretrain on, if they are not those of data; the labels are not used."""
    subset: Literal["same", "balanced", "all"] = "same"
    """same: the images of data's training split. all: without its long-tailed cut. balanced: as many as same, but
    equally many of each class."""
    image_size: int = ranged(0, 0)
    """Side of the square image; 0 takes data.image_size."""
    augment: Literal["none", "weak", "crop"] = "crop"
    """As in data.augment. The black borders of weak are easy to predict, and teach nothing."""
    batch_size: int = ranged(256, 1)
    """Images per step and process."""
    accumulate: int = ranged(1, 1)
    """Micro-batches per optimizer step."""
    epochs: int = ranged(800, 1)
    """Passes over the images."""
    lr: float = ranged(1.5e-4, 0.0)
    """Peak learning rate for 256 images per step; it grows in proportion to their number."""
    beta2: float = ranged(0.95, 0.0, 1.0)
    """Second beta of adamw."""
    weight_decay: float = ranged(0.05, 0.0)
    """Weight decay of matrices and tokens."""
    warmup_epochs: float = ranged(40.0, 0.0)
    """Epochs of linear warm-up from 0; then half a cosine down to 0."""
    clip: float = ranged(0.0, 0.0)
    """Largest gradient norm; 0 is off."""
    eval_every: int = ranged(10, 0)
    """Epochs between measurements and pictures of the reconstruction; 0 makes them at the end only."""
    mask: Literal["random", "block", "grid"] = "random"
    """Which patches are hidden."""
    ratio: float = field(default=0.75, metadata={"above": 0.0, "below": 1.0})
    """Share of the patches that is hidden."""
    pixels: Literal["normalised", "raw"] = "normalised"
    """What is predicted: each patch at mean 0 and variance 1, or the values of the image."""
    decoder_width: int = ranged(0, 0)
    """Channels of the decoder; 0 takes what suits the encoder."""
    decoder_depth: int = ranged(0, 0)
    """Blocks of the decoder; 0 takes what suits the encoder."""
    decoder_heads: int = ranged(0, 0)
    """Attention heads of the decoder; 0 takes what suits the encoder."""
    relation: Literal["none", "batchformer-v2"] = "none"
    """batchformer-v2: relate the images of a batch inside the decoder; further settings are those of relation."""
    relation_at: tuple[str, ...] = ("decoder.blocks.0",)
    """Layers whose output that relation relates."""
    pictures: int = ranged(8, 0)
    """Images in the picture of originals, masked images and reconstructions; 0 draws none."""
    neighbours: int = ranged(20, 0)
    """Neighbours of the k-NN classification that judges the finished encoder; 0 leaves it out."""


@dataclass(frozen=True)
class EvalConfig:
    """What did we get, for whom."""

    shot_rule: Literal["standard", "oltr", "mislas", "prior-lt", "cifar10", "thirds"] = "standard"
    """Boundary between many, medium and few."""
    adjust_tau: float = ranged(0.0)
    """Post-hoc logit adjustment: subtract tau x log prior from the logits; 0 is off."""
    tau_norm: float = ranged(0.0, 0.0)
    """Divide each classifier row by its norm to this power and drop the bias; 0 is off."""
    bootstrap: int = ranged(1000, 0)
    """Resamples for the confidence interval of top-1; 0 is off."""
    mini_batch: bool = False
    """Mini-batch inference: score the related stream. Scores then depend on which images share a batch."""


@dataclass(frozen=True)
class RunConfig:
    """A recipe with all its settings."""

    out: str = ""
    """Run directory; default runs/<recipe>-s<seed>. Rerunning the same command resumes there."""
    allow_changes: bool = False
    """Continue a run although its settings or data have changed; what changed is kept in its manifest."""
    minutes: float = ranged(0.0, 0.0)
    """Time for training and the last evaluation on this machine: train.epochs becomes what fits, found by timing a few
    steps, and the warm-up keeps its share of it. 0: train.epochs as given. For recipes of one stage."""
    stages: tuple[Stage, ...] = ("pretrain", "finetune")
    """Which stages to run, of those that the recipe has: pretrain (see pretrain.method), finetune (all the rest)."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    relation: RelationConfig = field(default_factory=RelationConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluate: EvalConfig = field(default_factory=EvalConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
