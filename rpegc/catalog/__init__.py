"""Data files that ship with rpegc: `hardware/` and `models/`, each figure with its source.

A model is one file, named as its repository with `--` for `/`. It holds the keys of the published `config.json` that
decide shape, or `like:` another model and the keys that differ. Names come from the folder, so listing parses nothing.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rpegc.errors import InputError, guess

_MODELS = Path(__file__).parent / "models"


@cache
def catalogue_models() -> tuple[str, ...]:
    """Return the names of all models in the catalogue, sorted."""
    return tuple(sorted(path.stem.replace("--", "/") for path in _MODELS.glob("*.yaml")))


def catalogue_facts(name: str) -> dict[str, object]:
    """Return the facts of a model under the keys of `config.json`, plus `source`.

    Raises InputError for a name that is not in the catalogue.
    """
    if name not in catalogue_models():
        raise InputError(f"`{name}` is not in the model catalogue", hint=guess(name, catalogue_models()))
    own = _read(_MODELS / f"{name.replace('/', '--')}.yaml")
    like = own.pop("like", None)
    return own if like is None else {**catalogue_facts(str(like)), **own}


def _read(path: Path) -> dict[str, object]:
    from ruamel.yaml import YAML  # imported here: most runs that list or import need no YAML

    facts: dict[str, object] = YAML(typ="safe", pure=True).load(path.read_text("utf-8"))
    return facts
