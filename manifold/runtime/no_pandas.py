"""Keeps PyArrow from importing pandas, which takes half a second with the first conversion of a Python value."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Say that pandas is not there, and nothing about any other module."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("left out, because an answer needs none", name=fullname)
        return None


def leave_pandas_out() -> None:
    """For the rest of this process there is no pandas; for whoever only answers."""
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas())
