"""Folders that are also functions: `pairingnet.search` is the step of the flow, and the call that does it."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class Step(ModuleType):
    """A package that can be called; the call goes to the function of the same name in `pairingnet.api`."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module("pairingnet.api"), name)(*given, **named)


def make_callable(package: str) -> None:
    """Importing a package hides the public function of its name; this gives the function back."""
    sys.modules[package].__class__ = Step
