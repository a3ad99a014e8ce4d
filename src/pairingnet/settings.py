"""Reading, changing and comparing settings (`config.py`).

Values come from the defaults, then a TOML file, then `--set name=value`. An unknown name is refused with the
nearest real one.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pairingnet.config import ArchiveSettings, PaperSettings, SolveSettings
from pairingnet.errors import SettingsError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")


def with_values(settings: Settings, values: Mapping[str, Any], where: str = "the settings") -> Settings:
    """A copy with some values changed. Text is turned into the field's type; anything unknown is refused."""
    known = {field.name: type(getattr(settings, field.name)) for field in fields(settings)}
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"Did you mean '{near[0]}'?" if near else f"Known names: {', '.join(known)}."
            raise SettingsError(f"There is no setting '{name}' in {where}.", hint)
        changes[name] = _as_type(name, value, known[name])
    return replace(settings, **changes)


def solve_settings(values: Mapping[str, Any]) -> SolveSettings:
    """Settings of the main job; those of its stages as `prepare.name`, or as tables."""
    return _with_stages(SolveSettings(), values, "solve")


def archive_settings(values: Mapping[str, Any]) -> ArchiveSettings:
    """Settings of an archive; those of its stages as `prepare.name`, `votes.name` and `index.name`, or as tables."""
    return _with_stages(ArchiveSettings(), values, "archive")


def _with_stages(settings: Settings, values: Mapping[str, Any], where: str) -> Settings:
    """A copy with some values changed, also those of settings that are themselves a setting."""
    flat = _flat(values)
    stages: dict[str, Any] = {name: stage for name, stage in vars(settings).items() if is_dataclass(stage)}
    unknown = sorted({name.rpartition(".")[0] for name in flat} - {"", *stages})
    if unknown:
        raise SettingsError(f"There are no settings '{unknown[0]}' in {where}.", f"Known: {', '.join(stages)}.")
    changed = {name: with_values(stage, _of(flat, name), name) for name, stage in stages.items()}
    return replace(with_values(settings, _of(flat, ""), where), **changed)


def _of(flat: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """The values of one stage; "" for those of none."""
    return {n.rpartition(".")[2]: v for n, v in flat.items() if n.rpartition(".")[0] == stage}


def network_and_training(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the paper's network, and of its training, from one list of names."""
    names = {field.name for field in fields(PaperSettings)}
    return {n: v for n, v in values.items() if n in names}, {n: v for n, v in values.items() if n not in names}


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """`["s1=0.25", "n_max=2"]` as a mapping."""
    values = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"'{assignment}' is not a setting.", "Write --set name=value.")
        values[name.strip()] = value.strip()
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a TOML file; those of a table `[wear]` are called `wear.name`."""
    return _flat(_toml(path))


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a TOML file, each with its settings."""
    tables = _toml(path)
    alone = [name for name, value in tables.items() if not isinstance(value, dict)]
    if alone:
        raise SettingsError(
            f"'{alone[0]}' in {path} stands in no table.", "Begin each with its name, such as [turned]."
        )
    return tables


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read ({error.strerror}).", "Check the path.") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f"{path} is not valid TOML ({error}).", "Mend the file, one name = value a line."
        ) from error


def _flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        flat.update({f"{name}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {name: value})
    return flat


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`["seed: 1 before, 2 now"]` for every value that is not the same."""
    names = sorted({*old, *new})
    return [
        f"{name}: {old.get(name, 'unset')} before, {new.get(name, 'unset')} now"
        for name in names
        if old.get(name) != new.get(name)
    ]


def as_dict(settings: DataclassInstance) -> dict[str, Any]:
    """The settings as plain values, for the files that remember them."""
    return asdict(settings)


def _as_type(name: str, value: Any, kind: type) -> Any:
    words = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
    }
    if kind is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() in words:
            return words[str(value).lower()]
    elif kind is str and isinstance(value, str):
        return value
    elif kind is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(_as_type(name, part, int) for part in parts)
    elif kind in (int, float) and not isinstance(value, bool):
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if (kind is float and not math.isnan(number)) or (kind is int and number.is_integer()):
            return kind(number)
    raise SettingsError(f"'{value}' is not a value for '{name}'.", f"Give a value of type {kind.__name__}.")
