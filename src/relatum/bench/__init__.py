"""How fast this machine trains: measured in turn, round by round, and held against bars."""

from relatum.bench.measure import Spread, interleaved, ratios
from relatum.bench.subjects import Subject

__all__ = ["Spread", "Subject", "interleaved", "ratios"]
