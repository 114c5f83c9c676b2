"""Numbers as people read them. None and numbers that are not finite become "n/a"."""

from __future__ import annotations

import math
from typing import Any

NOT_AVAILABLE = "n/a"
DASH = "\u2013"
RULE_WORDS = {
    "standard": "many > 100, medium 20 to 100, few < 20 training images",
    "oltr": "many ≥ 100, medium 21 to 99, few ≤ 20 training images",
    "mislas": "by class position: 36 many, 35 medium, 29 few",
    "prior-lt": "by class position: 33 many, 33 medium, 34 few",
    "cifar10": "by class position: 3 many, 4 medium, 3 few",
    "thirds": "equal thirds of the classes by training images",
}


def finite(value: Any) -> float | None:
    """Return `value` as a float, or None where it is missing or not finite."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def percent(value: Any) -> str:
    """Write a fraction as percent with one decimal, without the sign."""
    number = finite(value)
    return NOT_AVAILABLE if number is None else f"{100 * number:.1f}"


def percent_sign(value: Any) -> str:
    """Write a fraction as percent with the sign, after a space that does not break."""
    text = percent(value)
    return text if text == NOT_AVAILABLE else f"{text}\u00a0%"


def decimal(value: Any, digits: int = 3) -> str:
    """Write a number with `digits` decimals."""
    number = finite(value)
    return NOT_AVAILABLE if number is None else f"{number:.{digits}f}"


def whole(value: Any) -> str:
    """Write a whole number with thousands apart."""
    number = finite(value)
    return NOT_AVAILABLE if number is None else f"{number:,.0f}"


def plural(number: int, noun: str) -> str:
    """Write "1 class", "2 classes", "1 image", "2 images"."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def setting(value: Any) -> str:
    """Write a configuration or manifest value."""
    if value is None or value == "":
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(setting(item) for item in value) or DASH
    return str(value)
