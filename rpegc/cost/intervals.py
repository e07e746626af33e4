"""80 % intervals of training prices: quantiles of the residuals that `rpegc validate` finds on left-out rows.

A band (low, high) says that four of five measurements lie between seconds * low and seconds * high, for models
(families) or frameworks (`training_source`) that the constants were not fitted to. A test holds these figures against
the residuals; after a refit, `rpegc validate --bands` prints what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

Band = tuple[float, float]

BANDS: Mapping[str, Band] = MappingProxyType(
    {
        "training_dense": (0.911, 1.089),
        "training_moe": (0.858, 1.163),
        "training_source": (0.905, 1.195),
        "training_gh200": (0.921, 1.267),
    }
)


def training_band(mixture: bool, grace: bool, known: bool) -> Band:
    """Return the band of a pretraining framework: by kind of model, on GH200 apart, wider where no row is known."""
    if grace:
        return BANDS["training_gh200"]
    return BANDS["training_source" if not known else "training_moe" if mixture else "training_dense"]
