"""Losses per token, and the weights with which tokens enter the sum. All tensors are (B, S): rows by tokens.

A loss is the sum over all rows of the update of token loss times token weight, divided by one denominator of the whole
update. Ranks and micro-batches only add to the sum, so that no layout and no cut of the batch changes the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Options of the actor's loss: clip range, KL coefficient and estimator (0: none)."""

    clip_low: float
    clip_high: float
    kl_coefficient: float
    kl_estimator: str

    def tokens(
        self, logprobs: Tensor, old: Tensor, advantages: Tensor, reference: Tensor | None, weight: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the token losses, and which tokens were clipped.

        PPO's clipped objective, arXiv 1707.06347 equation 7; separate bounds as in DAPO, arXiv 2503.14476. `weight`
        corrects for stale samples: min(old / behaviour, cap), arXiv 2503.24290 and TIS.
        """
        ratio = torch.exp(logprobs - old)
        plain = ratio * advantages
        clipped = torch.clamp(ratio, 1.0 - self.clip_low, 1.0 + self.clip_high) * advantages
        losses = -torch.minimum(plain, clipped)
        if weight is not None:
            losses = losses * weight
        if reference is not None and self.kl_coefficient:
            losses = losses + self.kl_coefficient * divergence(logprobs, reference, self.kl_estimator)
        return losses, (clipped < plain).float()


def divergence(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """Estimate KL(policy | reference) from samples of the policy, with r = reference / policy.

    k1 = -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r. Source: J. Schulman, "Approximating KL divergence", 2020.
    """
    log_ratio = reference - logprobs
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2.0
    return torch.exp(log_ratio) - 1.0 - log_ratio


def value_losses(values: Tensor, old: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Return the critic's token losses, clipped around the old estimate. Source: PPO2 of OpenAI baselines."""
    near = old + torch.clamp(values - old, -clip, clip)
    return 0.5 * torch.maximum((values - returns).square(), (near - returns).square())


def token_weight(aggregation: str, length: int, longest: int) -> float:
    """Return the weight of each token of a response of that length.

    token-mean: 1 (DAPO). sequence-sum: 1 (RLOO, arXiv 2402.14740). sequence-mean: 1 / length (GRPO, arXiv 2402.03300).
    constant-length: 1 / longest (Dr. GRPO, arXiv 2503.20783).
    """
    if aggregation in ("token-mean", "sequence-sum"):
        return 1.0
    return 1.0 / max(length, 1) if aggregation == "sequence-mean" else 1.0 / longest


def denominator(aggregation: str, lengths: list[int]) -> float:
    """Return what the weighted sum of an update is divided by: its tokens, or its sequences."""
    return float(max(sum(lengths), 1) if aggregation == "token-mean" else max(len(lengths), 1))


def logprobs_of(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Return the log-probability of each target token (B, S) under logits (B, S, V) at a temperature, in fp32."""
    scaled = logits.float() / temperature
    chosen = scaled.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.logsumexp(scaled, dim=-1)
