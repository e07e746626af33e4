"""A pipeline that was read, checked and resolved: what the rest of the compiler may ask of the user's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from rpegc.architecture import Architecture, to_document
from rpegc.errors import InputError, SourcePosition, guess
from rpegc.frontend.presets import loss_of, overlong_buffer, oversampling_of, trained_roles
from rpegc.frontend.schema import PipelineSpec
from rpegc.frontend.schema_cluster import TargetFlavour
from rpegc.frontend.schema_stage import ModelSpec
from rpegc.frontend.schema_workload import LengthsSpec
from rpegc.frontend.yaml_source import KeyPath, YamlDocument
from rpegc.hardware import Machine, Pool
from rpegc.lengths import Lengths
from rpegc.rewrite import Allowance, ModelFacts, WorkloadFacts

Histogram = tuple[tuple[int, int], ...]
"""(tokens, count) pairs."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A validated pipeline with its models and its machine.

    `machine` is that of the first of `pools`, which trains. `architectures` has one entry per role. `histograms` holds
    the content of histogram files by workload key ("prompt_tokens", "response_tokens"). `document` is None when the
    pipeline was restored from a plan.
    """

    spec: PipelineSpec
    architectures: Mapping[str, Architecture]
    pools: tuple[Pool, ...]
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    document: YamlDocument | None = field(default=None, compare=False, repr=False)

    def position(self, path: str | KeyPath) -> SourcePosition | None:
        """Return where a key stands, such as "workload.prompts_per_step"; of an absent key, where its parent stands."""
        if self.document is None:
            return None
        return self.document.key_position(path.split(".") if isinstance(path, str) else path)

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.spec.name

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that have a model, in the order of the file."""
        return tuple(self.spec.models)

    @property
    def trained_roles(self) -> tuple[str, ...]:
        """The roles that some stage trains."""
        return trained_roles(self.spec)

    @property
    def sequences_per_step(self) -> int:
        """Sequences of one RL step."""
        return self.spec.workload.prompts_per_step * self.spec.workload.samples_per_prompt

    @property
    def machine(self) -> Machine:
        """The machine of the pool that trains, which is the whole cluster where it has no pools."""
        return self.pools[0].machine

    @property
    def nodes(self) -> int:
        """Nodes that the plan may use, of all pools."""
        return sum(pool.nodes for pool in self.pools)

    @property
    def gpus(self) -> int:
        """GPUs that the plan may use, of all pools."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def site(self) -> str:
        """The site whose launch conventions apply."""
        return self.spec.cluster.site or self.machine.site

    def model(self, role: str) -> ModelSpec:
        """Return a role's config, weights and tokenizer, with `like` followed and the tokenizer's default filled in."""
        named = self.spec.models[role]
        own = named
        while own.like is not None:
            own = self.spec.models[own.like]
        return own.model_copy(update={"tokenizer": own.tokenizer or own.weights, "like": named.like})

    def lora_rank(self, role: str) -> int:
        """Return the rank of the adapter that a role is trained with; 0 if its weights are trained, or not at all."""
        return self.spec.training.lora_rank if role in self.trained_roles else 0

    def with_flavour(self, flavour: str) -> Pipeline:
        """Return the pipeline with another flavour of its target, "" for its own; raises `InputError` for no such."""
        if not flavour:
            return self
        if flavour not in get_args(TargetFlavour):
            raise InputError(f"there is no flavour `{flavour}`", hint=guess(flavour, get_args(TargetFlavour)))
        return replace(self, spec=self.spec.model_copy(update={"target_flavour": flavour}))

    def fixed(self) -> dict[str, dict[str, tuple[bool | int | float | str, SourcePosition | None]]]:
        """Return the layout fields that the user fixed, by stage and field: the value and where it stands."""
        return {
            stage: {field: (value, self.position(("fix", stage, field))) for field, value in values.items()}
            for stage, values in self.spec.fix.items()
        }

    def prompt_lengths(self) -> Lengths:
        """Return the distribution of prompt lengths. Raises `InputError` where no distribution has these figures."""
        return self._lengths("prompt_tokens", self.spec.workload.prompt_tokens)

    def response_lengths(self) -> Lengths:
        """Return the distribution of response lengths. Raises `InputError` where no distribution has these figures."""
        return self._lengths("response_tokens", self.spec.workload.response_tokens)

    def _lengths(self, key: str, given: LengthsSpec) -> Lengths:
        try:
            if given.fixed is not None:
                return Lengths.fixed(given.fixed)
            if given.histogram is not None:
                return Lengths.from_histogram(self.histograms[key], given.longest)
            if given.mean is not None and given.p99 is not None:
                return Lengths.from_mean_p99(given.mean, given.p99, given.longest)
            return Lengths.from_mean(given.mean or 0.0, given.longest)
        except ValueError as problem:
            hint = str(getattr(problem, "hint", "")) or None
            raise InputError(f"`workload.{key}`: {problem}", self.position(("workload", key)), hint) from None

    def model_facts(self) -> dict[str, ModelFacts]:
        """Return what passes and rules may know of each role's model."""
        facts = {}
        for role, architecture in self.architectures.items():
            facts[role] = ModelFacts(
                role=role,
                architecture=architecture.name,
                layers=architecture.layers,
                hidden=architecture.hidden,
                heads=architecture.heads,
                kv_heads=architecture.kv_heads,
                vocabulary=architecture.vocabulary,
                experts=architecture.experts,
                max_positions=architecture.max_positions,
                like=self.spec.models[role].like or "",
                lora_rank=self.lora_rank(role),
                recurrent_layers=architecture.recurrent_layers,
                sink_layers=architecture.sink_layers,
            )
        return facts

    def workload_facts(self) -> WorkloadFacts:
        """Return the step's counts and lengths, as passes and rules see them."""
        workload, training = self.spec.workload, self.spec.training
        penalised = training.kl.coefficient > 0 or "reference" in self.spec.models
        return WorkloadFacts(
            prompts_per_step=workload.prompts_per_step,
            samples_per_prompt=workload.samples_per_prompt,
            minibatches_per_step=workload.minibatches_per_step,
            epochs_per_batch=training.epochs_per_batch,
            max_prompt_tokens=workload.prompt_tokens.longest,
            max_response_tokens=workload.response_tokens.longest,
            mean_prompt_tokens=self.prompt_lengths().mean,
            mean_response_tokens=self.response_lengths().mean,
            kl_coefficient=training.kl.coefficient,
            kl_where=loss_of(self.spec).kl_where if penalised else "none",
        )

    def allowance(self) -> Allowance:
        """Return what the user permits beyond exact rewrites."""
        allow = self.spec.allow
        return Allowance(
            max_staleness=allow.max_staleness,
            partial_rollout=allow.partial_rollout,
            model_changes=frozenset(allow.model_changes),
            minimum_gain=allow.minimum_gain,
        )

    def resolved(self) -> dict[str, Any]:
        """Return the whole pipeline as plain JSON, every default filled in, self-contained and in a fixed order.

        Beside the keys of the pipeline file it holds `architectures` (each role's model in numbers), `histograms` and
        `loss` (the words of `rpegc.frontend.presets.recipe.Loss`, prompts generated for each one trained on, and the
        punishment of long responses).
        """
        document: dict[str, Any] = self.spec.model_dump(mode="json", by_alias=True)
        loss, training = loss_of(self.spec), document["training"]
        training["clip"] = list(loss.clip)
        training["kl"] |= {"where": loss.kl_where, "estimator": loss.kl_estimator}
        buffer_tokens, penalty = overlong_buffer(self.spec)
        document["loss"] = {
            "kind": loss.kind,
            "aggregation": loss.aggregation,
            "advantages": loss.advantages,
            "oversampling": oversampling_of(self.spec),
            "overlong_buffer_tokens": buffer_tokens,
            "overlong_penalty": penalty,
        }
        document["cluster"]["site"] = self.site
        document["models"] = {role: self.model(role).model_dump(mode="json") for role in self.roles}
        document["target_overrides"] = dict(sorted(document["target_overrides"].items()))
        document["architectures"] = {role: to_document(self.architectures[role]) for role in self.roles}
        document["histograms"] = {key: [list(pair) for pair in self.histograms[key]] for key in sorted(self.histograms)}
        return document
