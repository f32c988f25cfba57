"""What an experiment is: settings, instances, and what is made of their records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

Record = dict[str, Any]
"""{"methods": {name: {"losses": {scenarios: [...]}, "promise": ..., ...}}}."""


@dataclass(frozen=True)
class Experiment(ABC):
    """An experiment of the paper; its fields are the settings, by default those of the paper.

    An instance is known by its key, and what it computes depends on the settings and its key alone.
    """

    seed: int = 0

    name: ClassVar[str]
    title: ClassVar[str]

    @classmethod
    @abstractmethod
    def quick(cls, seed: int = 0) -> Self:
        """The same in small, for a few seconds."""

    @abstractmethod
    def keys(self) -> list[str]:
        """The instances, in order."""

    @abstractmethod
    def run(self, key: str) -> Record:
        """Compute one instance."""

    @abstractmethod
    def group(self, key: str) -> dict[str, Any]:
        """What the instance is reported under in the table, such as its number of edges."""

    @abstractmethod
    def figure(self, records: Mapping[str, Record]) -> Any:
        """The figure, drawn from the records of all instances."""

    def further(self, records: Mapping[str, Record]) -> dict[str, Any]:
        """Further files by their names: figures (.png), or the rows of a table (.csv)."""
        return {}

    def settings(self) -> dict[str, Any]:
        """Everything that the records depend on, as JSON knows it."""
        return {"experiment": self.name, **asdict(self)}
