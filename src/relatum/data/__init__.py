"""Data: which samples, in which order, changed how.

The door is `build_loaders(DataConfig) -> Loaders`. The generated world (`relatum.data.shapes`) and the look at a data
set (`relatum.data.inspect`) are imported by their own names.
"""

from relatum.data.augment.mixing import Mixer
from relatum.data.augment.pipeline import TrainAugment, build_augment
from relatum.data.cifar import read_cifar
from relatum.data.folder import read_folder
from relatum.data.loaders import EvalLoader, Loaders, TrainLoader, build_loaders, loaders_from_splits
from relatum.data.longtail import long_tail_counts, make_long_tailed
from relatum.data.preprocess import Preprocess
from relatum.data.samplers import build_sampler
from relatum.data.source import ArraySource, DatasetSource, FileSource, ImageSource, from_arrays, from_dataset
from relatum.data.splits import open_splits, stratified_holdout
from relatum.data.tables import read_csv, read_list

__all__ = [
    "ArraySource",
    "DatasetSource",
    "EvalLoader",
    "FileSource",
    "ImageSource",
    "Loaders",
    "Mixer",
    "Preprocess",
    "TrainAugment",
    "TrainLoader",
    "build_augment",
    "build_loaders",
    "build_sampler",
    "from_arrays",
    "from_dataset",
    "loaders_from_splits",
    "long_tail_counts",
    "make_long_tailed",
    "open_splits",
    "read_cifar",
    "read_csv",
    "read_folder",
    "read_list",
    "stratified_holdout",
]
