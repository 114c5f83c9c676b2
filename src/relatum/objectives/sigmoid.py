"""Binary cross-entropy over all classes, and the one that makes up for their frequencies."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from relatum.errors import ConfigError, suggest
from relatum.objectives import functional
from relatum.objectives.base import Objective
from relatum.objectives.checks import warn_absent_classes
from relatum.objectives.terms import balanced_bce_bias, has_uniform_test_prior, log_odds, uniform_log_odds
from relatum.prior import ClassPrior

BIAS_PRIORS = ("implied", "counts")


class BCE(Objective):
    """Binary cross-entropy of sigmoid(z_k) against y_k, summed over the classes.

    Soft targets, such as those of mixup and cutmix, are taken as they are, without a threshold. Class weights weigh
    whole samples as everywhere here, all K terms alike.
    """

    sigmoid_bias = 0.0

    def per_sample(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """See `functional.binary_cross_entropy`."""
        return functional.binary_cross_entropy(logits, targets, label_smoothing=self.label_smoothing)

    def matching_head_bias(self, num_classes: int | None = None) -> Tensor:
        """Return -log(K - 1) for each class, (K,): the sigmoids then start at 1 / K instead of 1 / 2."""
        zeros = super().matching_head_bias(num_classes)
        return zeros + uniform_log_odds(len(zeros))


class BalancedBCE(BCE):
    """Binary cross-entropy of z + tau log(pi / (1 - pi)) while training; predict with the raw logits z.

    With a test prior other than uniform in `prior` its log-odds are subtracted, also times tau: with tau = 1, z is then
    the log-odds of the class at test. A uniform test prior differs from none by the constant log(K - 1), which changes
    neither the order of the classes nor their softmax, only where training starts and what sigmoid(z) means. It is the
    option `shift`, is not multiplied by tau, and wants the classifier's bias to start at `matching_head_bias()`.

    What sigmoid(z) means: training makes sigmoid(z_k + b_k) the probability p_k of the class where it has the share
    pi_k, b being the bias above. Another share pi' moves the log-odds of a class by log-odds(pi') - log-odds(pi), the
    rest taken as one class that stays as it is (exact for two classes). Where all K are equally likely the log-odds
    are thus z_k + c with c = log-odds(1 / K) = -log(K - 1) for tau = 1, or 0 with the shift, which is that constant.
    For any tau c is the bias that an average class, pi_k = 1 / K, would have: -tau log(K - 1), plus the shift. A test
    prior that is not uniform is inside z already: c = 0. `sigmoid_bias` is c.

    A class without training samples counts as one sample, as `ClassPrior` defines; a warning names it.

    Args:
        prior: the class prior, with the test prior.
        tau: strength; 0 is `BCE`, up to the shift.
        shift: "none", or "log(C-1)" to add that constant: sigmoid(z) is then a probability at a uniform test.
        bias_prior: "implied" takes pi from the targets that are trained on: with label smoothing eps it is
            (1 - eps) pi + eps / K. "counts" takes that of the labels.
        **options: `label_smoothing` and `reduction` of `Objective`.
    """

    bias: Tensor
    head_bias: Tensor

    def __init__(
        self,
        prior: ClassPrior,
        tau: float = 1.0,
        shift: str = "none",
        bias_prior: str = "implied",
        **options: Any,
    ) -> None:
        super().__init__(prior, **options)
        if bias_prior not in BIAS_PRIORS:
            raise ConfigError(f"unknown bias_prior '{bias_prior}' of balanced-bce; {suggest(bias_prior, BIAS_PRIORS)}")
        smoothing = self.label_smoothing if bias_prior == "implied" else 0.0
        bias = balanced_bce_bias(prior, tau, shift, smoothing)
        warn_absent_classes(prior, "balanced-bce")
        self.tau = tau
        self.shift = shift
        self.bias_prior = bias_prior
        self.corrects_prior = tau != 0
        self.sigmoid_bias = _sigmoid_bias(prior, tau, shift)
        self._store_vector("bias", bias)
        # The classifier takes back what the bias holds beside tau log(pi / (1 - pi)): all variants start from one loss.
        self._store_vector("head_bias", tau * log_odds(prior.safe_counts, smoothing) - bias)

    def per_sample(self, logits: Tensor, targets: Tensor, features: Tensor | None = None) -> Tensor:
        """See `functional.binary_cross_entropy`."""
        return functional.binary_cross_entropy(logits, targets, self.bias, label_smoothing=self.label_smoothing)

    def matching_head_bias(self, num_classes: int | None = None) -> Tensor:
        """Return (K,): zeros, -log(K - 1) with the shift, tau times the log-odds of a test prior that is not uniform.

        With it the loss starts where it would start from zeros without shift and test prior: at sigmoids that are the
        class frequencies (for tau = 1).
        """
        self._known_classes(num_classes)
        return self.head_bias.detach().cpu().clone()

    def extra_repr(self) -> str:
        """Return what `print(objective)` shows between the brackets."""
        return f"tau={self.tau}, shift={self.shift!r}, bias_prior={self.bias_prior!r}, {super().extra_repr()}"


def _sigmoid_bias(prior: ClassPrior, tau: float, shift: str) -> float:
    """Return the bias of a class with the share 1 / K: what raw logits lack for log-odds where all are as likely."""
    if not has_uniform_test_prior(prior):
        return 0.0
    uniform = uniform_log_odds(prior.num_classes)
    return tau * uniform - (uniform if shift != "none" else 0.0)
