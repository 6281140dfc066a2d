"""Names the models of a repository in an object store, in models.json, so that nobody has to list it."""

from __future__ import annotations

import secrets

from pydantic import Field, ValidationError

from storage.checkpoint.signed import Part
from storage.checkpoint.strict_json import canonical_json
from storage.errors import ConfigError, NotFound, ObjectStoreError, UnsafeArtifact
from storage.objects.object_store import Changed, ObjectStore, Taken
from storage.specs import check_model_name

MODELS = "models.json"
_ATTEMPTS = 100


class _Content(Part):
    format: int = Field(default=1, ge=1, le=1)
    write: str = ""
    models: tuple[str, ...] = ()


class ModelNames:
    """The names of the models in a repository."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def read(self) -> tuple[str, ...]:
        """Returns the names, in order; none before anything was published. Raises ObjectStoreError, UnsafeArtifact."""
        return self._read()[0]

    def add(self, name: str) -> None:
        """Adds a name, unless it is there."""
        for _ in range(_ATTEMPTS):
            names, tag = self._read()
            if name in names:
                return
            content = _Content(write=secrets.token_hex(8), models=tuple(sorted({*names, name})))
            data = canonical_json(content.model_dump(mode="json"))
            try:
                if tag is None:
                    self._objects.create(MODELS, data)
                else:
                    self._objects.replace(MODELS, data, tag)
            except (Changed, Taken):
                continue  # also after a write whose answer was lost: then the name is found
            return
        raise ObjectStoreError(f"{self._objects.url}/{MODELS}: other writers keep changing it; try again")

    def _read(self) -> tuple[tuple[str, ...], str | None]:
        try:
            found = self._objects.read(MODELS)
        except NotFound:
            return (), None
        assert found is not None
        try:
            names = _Content.model_validate_json(found.data).models
            for name in names:
                check_model_name(name)
        except (ValidationError, ConfigError) as error:
            raise UnsafeArtifact(
                f"{self._objects.url}/{MODELS}: is not a list of models ({type(error).__name__})"
            ) from None
        return names, found.tag
