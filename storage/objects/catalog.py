"""Names the models of a repository in an object store, in models.json, so that nobody has to list it."""

from __future__ import annotations

from pydantic import Field, ValidationError

from storage.checkpoint.signed import Part
from storage.checkpoint.strict_json import canonical_json
from storage.errors import ConfigError, NotFound, UnsafeArtifact
from storage.objects.object_store import ObjectStore
from storage.specs import check_model_name

MODELS = "models.json"


class _Content(Part):
    format: int = Field(default=1, ge=1, le=1)
    models: tuple[str, ...] = ()


class ModelNames:
    """The names of the models in a repository."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def read(self) -> tuple[str, ...]:
        """Returns the names, in order; none before anything was published. Raises ObjectStoreError, UnsafeArtifact."""
        try:
            found = self._objects.read(MODELS)
        except NotFound:
            return ()
        assert found is not None
        return self._parsed(found.data)

    def add(self, name: str) -> None:
        """Adds a name, unless it is there."""

        def edited(data: bytes | None) -> bytes | None:
            names = self._parsed(data)
            if name in names:
                return None
            return canonical_json(_Content(models=tuple(sorted({*names, name}))).model_dump(mode="json"))

        self._objects.edit(MODELS, edited)

    def _parsed(self, data: bytes | None) -> tuple[str, ...]:
        if data is None:
            return ()
        try:
            names = _Content.model_validate_json(data).models
            for name in names:
                check_model_name(name)
        except (ValidationError, ConfigError) as error:
            where = f"{self._objects.url}/{MODELS}"
            raise UnsafeArtifact(f"{where}: is not a list of models ({type(error).__name__})") from None
        return names
