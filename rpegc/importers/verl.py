"""A launch of verl as a pipeline with every layout fixed: the keys of versions 0.3 to 0.9 that decide memory and time.

Keys: verl's `trainer/config/*.yaml`. Defaults are those of these files unless a line here says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rpegc.errors import InputError
from rpegc.importers.settings import Settings
from rpegc.importers.shell import read_overrides
from rpegc.importers.verl_layouts import engine_layout, forward_layout, training_layout
from rpegc.target import Layout, Mesh

GROUPS = frozenset(
    (
        "actor_rollout_ref",
        "algorithm",
        "async_training",
        "config-name",
        "critic",
        "data",
        "model_engine",
        "reward",
        "reward_model",
        "rollout",
        "trainer",
    )
)
ACTOR, ROLLOUT, REFERENCE, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref", "model"))

PRESETS = {
    "grpo": "grpo",
    "gae": "ppo",
    "rloo": "rloo",
    "remax": "remax",
    "reinforce_plus_plus": "reinforce++",
    "reinforce_plus_plus_baseline": "reinforce++",
}
"""Presets by verl's `algorithm.adv_estimator`; other estimators without a critic use the memory of grpo."""

MEAN_SHARE = 0.5
"""Mean length over longest length of prompts and responses, which no launch script states (assumed)."""

SAME_SHAPE = {
    "Qwen2-7B-Instruct": "Qwen/Qwen2-7B",
    "Qwen2-72B-Instruct": "Qwen/Qwen2-72B",
    "Qwen2.5-Math-7B": "Qwen/Qwen2.5-7B",
    "Qwen2.5-Math-7B-Instruct": "Qwen/Qwen2.5-7B",
    "Qwen2.5-Coder-7B-Instruct": "Qwen/Qwen2.5-7B",
    "Qwen2.5-Coder-14B-Instruct": "Qwen/Qwen2.5-14B",
    "Qwen1.5-MoE-A2.7B-Chat": "Qwen/Qwen1.5-MoE-A2.7B",
    "gpt-oss-20b-bf16": "openai/gpt-oss-20b",
    "GLM-4.5-Air-Base": "zai-org/GLM-4.5-Air",
}
"""Models whose `config.json` has the shapes of one of the catalogue."""

Place = tuple[str, str]
"""What a stage does ("train", "forward", "generate") and the role whose model it runs."""

KNOWN_LENGTHS = {"dapo": (170.0, None), "math": (120.0, 600.0), "gsm8k": (110.0, 280.0)}
"""Mean tokens of prompts and responses by a word in the name of the data, the first that fits (assumed: order of
magnitude of the data sets GSM8K, MATH and DAPO-Math-17k under chat templates); no response longer than `MEAN_SHARE`."""

FOREIGN_ENGINES = ("veomni", "mindspeed", "torchtitan", "mlite")


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch fixes: the pipeline (keys of the pipeline file), and a layout and a mesh for each GPU stage.

    `ignored` lists keys that decide neither memory nor time here, `assumed` what the script leaves open.
    """

    pipeline: dict[str, Any]
    engine: str
    layouts: dict[Place, Layout]
    meshes: dict[Place, Mesh]
    ignored: tuple[str, ...]
    assumed: tuple[str, ...]


def read_launch(text: str, name: str, hardware: str, model: str | None, catalogue: tuple[str, ...]) -> Launch:
    """Read a script, or a list of overrides; nothing of it is executed.

    `hardware` is a machine of rpegc, `model` a model of its `catalogue` in the place of the script's. Raises InputError
    for what is missing, contradictory, or beyond what rpegc prices.
    """
    settings = Settings(read_overrides(text, GROUPS))
    if not settings.overrides.values:
        raise InputError(f"{name}: no setting of verl in it", None, "settings look like `data.train_batch_size=512`")
    engine = _engine(settings)
    _refuse_foreign(settings, engine)
    pools = _meshes(settings)
    roles = _roles(settings, engine)
    actor = training_layout(settings, engine, "actor", pools["trainer"])
    layouts: dict[Place, Layout] = {
        ("generate", "actor"): engine_layout(settings, pools["rollout"]),
        ("forward", "actor"): forward_layout(settings, engine, "actor", actor),
        ("train", "actor"): actor,
    }
    if "reference" in roles:
        layouts["forward", "reference"] = forward_layout(settings, engine, "reference", actor)
    if "critic" in roles:
        critic = training_layout(settings, engine, "critic", pools["trainer"])
        layouts["forward", "critic"] = forward_layout(settings, engine, "critic", critic)
        layouts["train", "critic"] = critic
    pipeline = _pipeline(settings, engine, hardware, roles, pools["trainer"], model, catalogue)
    meshes = {place: pools["rollout" if place[0] == "generate" else "trainer"] for place in layouts}
    workload = pipeline["workload"]
    means = (workload["prompt_tokens"]["mean"], workload["response_tokens"]["mean"])
    assumed = ("prompts of {:.0f} and responses of {:.0f} tokens in the mean".format(*means),)
    return Launch(pipeline, engine, layouts, meshes, settings.ignored, assumed)


def _engine(settings: Settings) -> str:
    """Return fsdp or megatron: by strategy, by the engine of newer versions, or by the configuration's name."""
    strategy = settings.text(f"{ACTOR}.strategy", "model_engine", f"{ACTOR}.model_engine") or "fsdp"
    configuration = settings.text("config-name") or ""
    stated = any(key.startswith(f"{ACTOR}.megatron.") for key in settings.overrides.values)
    if "megatron" in configuration or strategy == "megatron" or stated:
        return "megatron"
    for foreign in FOREIGN_ENGINES:
        if foreign in strategy:
            raise InputError(f"the training engine {foreign} is not priced", None, "fsdp, fsdp2 and megatron are")
    return "fsdp"


def _refuse_foreign(settings: Settings, engine: str) -> None:
    """Raise InputError for what changes memory in a way that no layout expresses."""
    rollout = settings.text(f"{ROLLOUT}.name") or "vllm"
    if rollout not in ("vllm", "sglang"):
        raise InputError(f"the inference engine {rollout} is not priced", None, "vllm is; sglang is taken as vllm")
    optimizer = f"{ACTOR}.optim.override_optimizer_config"
    if settings.flag(f"{optimizer}.optimizer_cpu_offload", default=False):
        raise InputError(f"`{optimizer}.optimizer_cpu_offload`: an optimizer that runs on the host is not priced")
    if settings.flag(f"{ACTOR}.megatron.use_megatron_fsdp", default=False):
        raise InputError("Megatron-FSDP is not priced")
    if any(".mindspeed." in key or f"{ACTOR}.engine." in key for key in settings.overrides.values):
        raise InputError("the training engine of this launch is not priced", None, "fsdp, fsdp2 and megatron are")
    for section in ("reward_model", "reward.reward_model"):
        if settings.flag(f"{section}.enable", default=False):
            raise InputError("a reward model beside the actor is not read from launch scripts")
    if not settings.flag(f"{MODEL}.use_remove_padding", default=True) and engine == "fsdp":
        raise InputError(f"`{MODEL}.use_remove_padding` is off: padded batches are not priced")
    if settings.flag(f"{ACTOR}.fsdp_config.offload_policy", default=False):
        raise InputError("FSDP2's own offload policy (optimizer on the host) is not priced")


def _meshes(settings: Settings) -> dict[str, Mesh]:
    nodes = settings.count("trainer.nnodes", default=1)
    gpus = settings.count("trainer.n_gpus_per_node", default=8)
    if nodes < 1 or gpus < 1:
        raise InputError(f"trainer.nnodes and trainer.n_gpus_per_node must be positive: {nodes}, {gpus}")
    trainer = Mesh("pool", 0, nodes, 0, gpus)
    if settings.flag("actor_rollout_ref.hybrid_engine", default=True):
        return {"trainer": trainer, "rollout": trainer}
    own_nodes = settings.count("rollout.nnodes", f"{ROLLOUT}.nnodes", default=1)
    own_gpus = settings.count("rollout.n_gpus_per_node", f"{ROLLOUT}.n_gpus_per_node", default=gpus)
    return {"trainer": Mesh("trainer", 0, nodes, 0, gpus), "rollout": Mesh("rollout", nodes, own_nodes, 0, own_gpus)}


def lora_rank(settings: Settings) -> int:
    """Return the rank of the actor's adapters, 0 without."""
    return settings.count(f"{MODEL}.lora_rank", f"{MODEL}.lora.rank", default=0)


def _roles(settings: Settings, engine: str) -> tuple[str, ...]:
    """Return the roles: verl runs a reference for a KL penalty, the actor without its adapters where it has some."""
    penalty = settings.flag(f"{ACTOR}.use_kl_loss", default=False) | settings.flag(
        "algorithm.use_kl_in_reward", default=False
    )
    critic = settings.text("algorithm.adv_estimator") in (None, "gae")
    reference = penalty and not lora_rank(settings)
    return ("actor", *(("reference",) if reference else ()), *(("critic",) if critic else ()))


def _catalogued(name: str | None, key: str, catalogue: tuple[str, ...]) -> str:
    if name is None:
        raise InputError(f"`{key}` is missing: which model?", None, "name one of the catalogue with --model")
    name = SAME_SHAPE.get(name, name)
    found = [known for known in catalogue if name in (known, known.rsplit("/", 1)[-1])]
    if not found:
        hint = "name one of the same shape with --model; `rpegc list models` shows the catalogue"
        raise InputError(f"`{key}`: the model {name} is not in the catalogue", None, hint)
    return found[0]


def mean_lengths(settings: Settings, longest: dict[str, int]) -> dict[str, float]:
    """Return mean tokens of prompts and responses: known for the data by its name, at most a share of the longest."""
    files = settings.raw("data.train_files").lower()
    known = next((means for word, means in KNOWN_LENGTHS.items() if word in files), (None, None))
    limits = {key: max(MEAN_SHARE * most, 1.0) for key, most in longest.items()}
    return {key: min(limits[key], mean or limits[key]) for key, mean in zip(("prompt", "response"), known, strict=True)}


def _pipeline(
    settings: Settings,
    engine: str,
    hardware: str,
    roles: tuple[str, ...],
    trainer: Mesh,
    model: str | None,
    catalogue: tuple[str, ...],
) -> dict[str, Any]:
    path = settings.last_part(f"{MODEL}.path")
    actor = _catalogued(model or path, f"{MODEL}.path", catalogue)
    models: dict[str, Any] = {"actor": {"config": actor}}
    if "reference" in roles:
        models["reference"] = {"like": "actor"}
    if "critic" in roles:
        own = settings.last_part("critic.model.path")
        same = own is None or own == path or model is not None
        models["critic"] = {"config": actor if same else _catalogued(own, "critic.model.path", catalogue)}
    prompts = settings.count("data.train_batch_size", default=1024) or settings.count(
        f"{ACTOR}.ppo_mini_batch_size", default=256
    )
    update = settings.count(f"{ACTOR}.ppo_mini_batch_size", default=256)
    if update < 1 or prompts < 1:
        raise InputError(f"data.train_batch_size and ppo_mini_batch_size must be positive: {prompts}, {update}")
    if prompts < update:
        raise InputError(f"data.train_batch_size is {prompts}, less than ppo_mini_batch_size = {update}: verl refuses")
    lengths = {key: settings.count(f"data.max_{key}_length", default=512) for key in ("prompt", "response")}
    means = mean_lengths(settings, lengths)
    estimator = settings.text("algorithm.adv_estimator") or "gae"
    preset, samples = PRESETS.get(estimator, "grpo"), settings.count(f"{ROLLOUT}.n", default=1)
    return {
        "name": "imported",
        "algorithm": "reinforce++" if samples == 1 and preset == "grpo" else preset,  # a group of one: same stages
        "models": models,
        "workload": {
            "prompts_per_step": update * (prompts // update),
            "samples_per_prompt": samples,
            "minibatches_per_step": prompts // update,
            **{f"{key}_tokens": {"mean": means[key], "max": most} for key, most in lengths.items()},
        },
        "training": {
            "epochs_per_batch": settings.count(f"{ACTOR}.ppo_epochs", default=1),
            "lora_rank": lora_rank(settings),
            **({"kl": {"coefficient": 0.001}} if "reference" in roles else {}),
        },
        "reward": {"seconds_per_sample": 0.02},
        "cluster": {"hardware": hardware, "nodes": trainer.nodes},
        "target": "verl",
        "engine": engine,
    }
