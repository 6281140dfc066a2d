"""Keeps the targets that a front end decodes requests for: name, version, and the signature when it asked."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from serving.engine.endpoint import Endpoint
from serving.protocol.signature import ModelSignature
from serving.repository.model_repository import ModelRepository
from storage.features.flat import Layout

# Past this number a target's layouts are dropped: a client may send its inputs in any number of forms.
_MAX_LAYOUTS = 256


@dataclass(slots=True)
class Target:
    """Holds a name and version with the signature that the front end decodes its requests for."""

    name: str
    version: str
    signature: ModelSignature
    #: The endpoint that answered last, whose signature takes what this one's takes.
    endpoint: weakref.ref[Endpoint] | None = None
    layouts: dict[bytes, Layout] = field(default_factory=dict)

    def layout(self, code: bytes) -> Layout:
        """Returns the layout that `flatten` described. Raises InvalidInput."""
        found = self.layouts.get(code)
        if found is None:
            if len(self.layouts) >= _MAX_LAYOUTS:
                self.layouts.clear()
            found = self.layouts[code] = Layout.parse(code, self.signature.raw)
        return found


class Targets:
    """The targets of one front end, by number. On the engine's event loop."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository
        self._all: list[Target] = []

    def add(self, name: str, version: str, signature: ModelSignature) -> int:
        """Assigns a number to a name and version that the front end decodes for this signature."""
        for number, target in enumerate(self._all):
            if (target.name, target.version) == (name, version) and target.signature is signature:
                return number
        self._all.append(Target(name, version, signature))
        return len(self._all) - 1

    def known(self, number: int) -> Target:
        """Returns the target of a number. Raises IndexError for one that was never assigned."""
        return self._all[number]

    def find(self, number: int) -> Target | None:
        """Returns the target of a number; None where an engine before this one assigned it."""
        return self._all[number] if number < len(self._all) else None

    def is_current(self, number: int, routing_key: str) -> bool:
        """Returns whether a target's signature is still that of its name and version. Raises as
        `ModelRepository.get`.
        """
        target = self.find(number)
        if target is None:
            return False
        return self._repository.get(target.name, target.version, routing_key).signature is target.signature
