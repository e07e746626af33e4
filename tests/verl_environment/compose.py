"""Composes override files with verl's own Hydra files, in one process; prints one JSON object a file.

    compose.py REQUEST.json      with  [{"module": driver, "overrides": file, "select": [key, ...]}, ...]

Runs in the environment of level compose: verl itself is never imported (that would need torch and Ray).
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

CONFIGS = {
    "verl.trainer.main_ppo": ("trainer/config", "ppo_trainer"),
    "verl.experimental.one_step_off_policy.main_ppo": (
        "experimental/one_step_off_policy/config",
        "one_step_off_ppo_trainer",
    ),
}
"""Folder and name of the configuration that each driver composes."""


def package_folder() -> Path:
    """Return the folder of the installed verl package."""
    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        raise SystemExit("verl is not installed here")
    return Path(spec.origin).parent


def composed(module: str, overrides: list[str]) -> Any:
    """Compose one configuration as the driver's `hydra.main` would."""
    folder, name = CONFIGS[module]
    package = package_folder()
    # `pkg://` search paths import verl, which this environment cannot; the files are the same.
    local = f"hydra.searchpath=[file://{package}/trainer/config]"
    lines = [local if line == "hydra.searchpath=[pkg://verl.trainer.config]" else line for line in overrides]
    with initialize_config_dir(str(package / folder), version_base=None):
        return compose(name, overrides=lines)


def report(request: dict[str, Any]) -> dict[str, Any]:
    """Compose one file; return the selected values, resolved, or the error."""
    lines = Path(request["overrides"]).read_text(encoding="utf-8").splitlines()
    try:
        config = composed(request["module"], lines)
        values = {key: OmegaConf.select(config, key) for key in request["select"]}
    except Exception as error:  # every failure is a finding
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}
    plain = {
        key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        for key, value in values.items()
    }
    return {"ok": True, "values": plain}


if __name__ == "__main__":
    requests = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps([report(request) for request in requests]))
