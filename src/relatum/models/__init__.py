"""From pixels to logits: models by name, classifiers, weights from local files."""

from relatum.models.cifar_resnet import CifarResNet, count_parameters
from relatum.models.create import OWN_MODELS, create_model
from relatum.models.embedding import Embedding
from relatum.models.encoder import load_encoder
from relatum.models.find import find_classifier
from relatum.models.heads import CosineClassifier, build_head, cosine_logits, replace_classifier
from relatum.models.weights import load_weights

__all__ = [
    "OWN_MODELS",
    "CifarResNet",
    "CosineClassifier",
    "Embedding",
    "build_head",
    "cosine_logits",
    "count_parameters",
    "create_model",
    "find_classifier",
    "load_encoder",
    "load_weights",
    "replace_classifier",
]
