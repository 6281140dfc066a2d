"""Packs the ids of a batch into one pinned buffer for lookups on a GPU: headers, other inputs, ranges, ids.

    header of the unpooled features | header of the pooled ones | sections of the other inputs | ranges | ids | weights

Headers are those of cuda/lookup.cuh; each kernel has one of its own, because features count from 0 in each. Behind them
is room for what a hook of the lookup puts there (`reserved`). Sections are packed as in `staging`. All that lies before
the ids depends on the form of the batch (rows, users) alone.

Letters: F features, B rows of a batch, U users, N ids, T tables of the store.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.gpu.features import GpuFeature, GpuFeatures
from serving.gpu.staging import InputLayout, PackedInputs, aligned
from storage.features import FeatureBatch, Jagged
from storage.hbm.lookup_kernels import (
    CHAIN_LENGTH_WORD,
    CHAIN_WORD,
    MOST_CHAIN,
    PACKED_FEATURE_WORD,
    PACKED_FEATURE_WORDS,
    header_words,
)

_ALIGN = 16
_RANGE_BYTES = 8
# Bytes reserved for the ids of pooled features, divided over the rows within bounds: a batch with more ids in all its
# bags together is looked up by the host.
_BAG_BYTES = 32 << 20
_LEAST_BAG, _MOST_BAG = 8, 64
_LEAST_IDS = 1024

logger = logging.getLogger("emberline.serving")


@dataclass(frozen=True)
class PackedIds:
    """The content of a packed batch."""

    #: Bytes of it.
    size: int
    #: (T,) uint64, ids by table, those of a user once.
    lookups: np.ndarray
    #: (F,) first word of each feature's ids, in words of 8 bytes.
    ids_at: np.ndarray
    #: (F,) number of ids, 0 where not all of them are looked up.
    id_counts: np.ndarray
    #: (F,) first word of each feature's weights, in words of 4 bytes; 0 without weights.
    weights_at: np.ndarray
    #: True if the rows of a user share their ids.
    shares_rows: bool


class GpuPacking:
    """Layout of packed batches. Shared by all sessions of a model; thread-safe."""

    def __init__(self, features: GpuFeatures, inputs: InputLayout, tables: int, *, reserved_bytes: int = 0) -> None:
        """Computes the layout.

        inputs: layout of all inputs of the graph. tables: number of tables of the store. reserved_bytes: space behind
        the headers, for a hook of the lookup.
        """
        self.features = features
        self.tables = tables
        self.max_rows = inputs.max_rows
        #: Layout of the inputs that are not made from ids.
        self.inputs = inputs.only(features.packed)
        gathered, pooled = len(features.gathered), len(features.pooled)
        # Offset of each header.
        self.headers = (0, aligned(8 * header_words(gathered), _ALIGN))
        self.reserved_at = self.headers[1] + aligned(8 * header_words(pooled), _ALIGN)
        self.sections_at = self.reserved_at + aligned(reserved_bytes, _ALIGN)
        self.feature_count = gathered + pooled
        self.table_of = np.array([feature.table for feature in features.all], np.int64)
        # Ids of a bag beyond the length of an unpooled feature are not looked up.
        lengths = [feature.shape for feature in features.gathered]
        self.lengths = np.array(lengths, np.int64).reshape(gathered, 1)
        bag = min(_MOST_BAG, max(_LEAST_BAG, _BAG_BYTES // (8 * self.max_rows * max(1, pooled))))
        self.id_room = max(_LEAST_IDS, self.max_rows * (sum(lengths) + bag * pooled))
        self._warned = False
        weighted = sum(feature.is_weighted for feature in features.pooled)
        self.id_bytes = 8 * self.id_room + 4 * max(_LEAST_IDS, self.max_rows * bag) * weighted
        #: Size of the largest batch.
        self.packed_bytes = self.ids_at(self.max_rows, self.inputs.packed_bytes) + self.id_bytes

    def warn_of_room(self, name: str) -> None:
        """Warns once that a batch has more ids than there is room for."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s: a batch has more than %d ids, for which there is no room: the host looks such batches up; a lower "
                "max_batch_size leaves more room for each row",
                name,
                self.id_room,
            )

    def ranges_at(self, section_bytes: int) -> int:
        """Returns the offset of the ranges. section_bytes: size of the packed sections."""
        return aligned(self.sections_at + section_bytes, _ALIGN)

    def ids_at(self, rows: int, section_bytes: int) -> int:
        """Returns the offset of the ids of a batch of this many rows."""
        return self.ranges_at(section_bytes) + aligned(_RANGE_BYTES * self.feature_count * rows, _ALIGN)

    def form(self, buffer: np.ndarray, rows: int, users: int) -> GpuForm:
        """Returns the views of batches with this many rows and users (or 0), in a buffer of packed_bytes."""
        return GpuForm(self, buffer, self.inputs.packed(buffer[self.sections_at :], rows, users))


class GpuForm:
    """Batches of one form in one execution context's buffer. Not thread-safe: one thread uses it at a time."""

    def __init__(self, packing: GpuPacking, buffer: np.ndarray, inputs: PackedInputs) -> None:
        """Makes the views. inputs: the views of the sections."""
        self._packing = packing
        self._inputs = inputs
        self._features = packing.features.all
        self.rows, self.users = int(inputs.header[1]), int(inputs.header[2])
        self._sections = buffer[packing.sections_at :].view(np.uint8)[: inputs.header.nbytes].view(np.int64)
        ranges_at = packing.ranges_at(inputs.size)
        self._ids_at = packing.ids_at(self.rows, inputs.size)
        #: int64 words behind the headers.
        self.reserved = buffer[packing.reserved_at : packing.sections_at].view(np.int64)
        #: Offset and words of each kernel's header.
        self.headers: list[tuple[int, np.ndarray]] = []
        count = packing.feature_count
        self._ranges = buffer[ranges_at : ranges_at + _RANGE_BYTES * count * self.rows].view(np.int32)
        self._ranges = self._ranges.reshape(count, self.rows, 2)
        self._ids = buffer[self._ids_at :][: packing.id_bytes // 8 * 8].view(np.int64)
        self._floats = buffer[self._ids_at :][: packing.id_bytes // 8 * 8].view(np.float32)
        self._parts: list[tuple[slice, int, np.ndarray, np.ndarray, np.ndarray]] = []
        first = 0
        for at, part in zip(packing.headers, (packing.features.gathered, packing.features.pooled), strict=True):
            if not part:
                continue
            header = buffer[at : at + 8 * header_words(len(part))].view(np.int64)
            words = header[PACKED_FEATURE_WORD:].reshape(len(part), PACKED_FEATURE_WORDS)
            template = np.zeros_like(header)
            template[1] = self.rows
            numbers = first + np.arange(len(part))
            ranges = ranges_at + _RANGE_BYTES * self.rows * numbers - at
            template[PACKED_FEATURE_WORD + 2 :: PACKED_FEATURE_WORDS] = ranges
            self._parts.append((slice(first, first + len(part)), at, header, words, template))
            self.headers.append((at, header))
            first += len(part)
        of_users = np.array([self.users > 0 and feature.is_user for feature in self._features])
        self._item, self._user = np.flatnonzero(~of_users), np.flatnonzero(of_users)
        self._weighted = [number for number, feature in enumerate(self._features) if feature.is_weighted]
        place_of = {place: index for index, place in enumerate(packing.features.packed)}
        self._dense = [(inputs.views[place_of[place]], source) for place, source in packing.features.dense]
        self._integers = [(inputs.views[place_of[place]], source) for place, source in packing.features.integers]
        self._lengths = [
            (inputs.views[place_of[place]], number)
            for number, feature in enumerate(packing.features.gathered)
            for place in feature.lengths
        ]

    def put(
        self, stamp: int, item: FeatureBatch, user: FeatureBatch | None, user_of_row: np.ndarray | None
    ) -> PackedIds | None:
        """Packs a batch, except for the chain; returns None when it has more ids than there is room for.

        item: all features where there are no users; otherwise user has those of the user's side, of U users, and
        user_of_row (B,) gives the user of each row.
        """
        bags = [self._bags(feature, item, user) for feature in self._features]
        values = [each.values for each in bags]
        sizes = np.array([len(each) for each in values], np.int64)
        ends = sizes.cumsum()
        count = int(ends[-1])
        weights = [bags[number].weights for number in self._weighted]
        weight_count = int(sizes[self._weighted].sum()) if weights else 0
        if 8 * count + 4 * weight_count > 8 * len(self._ids):
            return None
        np.concatenate(values, out=self._ids[:count])
        begins = ends - sizes
        weights_at = np.zeros(len(bags), np.int64)
        if weights:
            begin = 2 * count
            np.concatenate([each for each in weights if each is not None], out=self._floats[begin:][:weight_count])
            of_weighted = sizes[self._weighted]
            weights_at[self._weighted] = self._ids_at // 4 + begin + of_weighted.cumsum() - of_weighted
        used, lengths = self._put_ranges(bags, user_of_row)
        for part, at, header, words, template in self._parts:
            header[:] = template
            header[0] = stamp
            words[:, 0] = self._ids_at - at + 8 * begins[part]
            words[:, 1] = sizes[part]
            if weights:
                words[:, 3] = np.where(weights_at[part] > 0, 4 * weights_at[part] - at, 0)
        self._put_sections(stamp, item, user, user_of_row, lengths)
        lookups = np.bincount(self._packing.table_of, used, self._packing.tables).astype(np.uint64)
        size = self._ids_at + 8 * count + 4 * weight_count
        # The rest of a bag that is longer than its feature is not looked up.
        counts = np.where(used < sizes, 0, sizes)
        return PackedIds(size, lookups, self._ids_at // 8 + begins, counts, weights_at, self.users > 0)

    def put_chain(self, chain: Sequence[int]) -> None:
        """Writes the differences that a search asks first, at most 8. Call it after `put`."""
        assert len(chain) <= MOST_CHAIN
        for _, header in self.headers:
            header[CHAIN_LENGTH_WORD] = len(chain)
            header[CHAIN_WORD : CHAIN_WORD + len(chain)] = chain

    def _bags(self, feature: GpuFeature, item: FeatureBatch, user: FeatureBatch | None) -> Jagged:
        return (user if user is not None and feature.is_user else item).ids[feature.name]

    def _put_ranges(self, bags: Sequence[Jagged], user_of_row: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns how many ids each feature looks up, those of a user once; and, (F,) arrays, lengths of its bags."""
        used = np.zeros(len(bags), np.int64)
        lengths = np.empty(len(bags), object)
        for numbers, rows in ((self._item, None), (self._user, user_of_row)):
            if len(numbers) == 0:
                continue
            offsets = np.concatenate([bags[number].offsets for number in numbers.tolist()]).reshape(len(numbers), -1)
            begins, ends = offsets[:, :-1], offsets[:, 1:]
            counts = ends - begins
            gathered = int(np.searchsorted(numbers, len(self._packing.lengths)))
            if gathered:
                np.minimum(counts[:gathered], self._packing.lengths[numbers[:gathered]], out=counts[:gathered])
            used[numbers] = counts.sum(1)
            if self._lengths:
                for number, of_bags in zip(numbers.tolist(), counts, strict=True):
                    lengths[number] = of_bags
            if rows is not None:
                begins, ends = begins[:, rows], ends[:, rows]
            if len(numbers) == len(bags):
                self._ranges[:, :, 0], self._ranges[:, :, 1] = begins, ends
            else:
                self._ranges[numbers, :, 0], self._ranges[numbers, :, 1] = begins, ends
        return used, lengths

    def _put_sections(
        self,
        stamp: int,
        item: FeatureBatch,
        user: FeatureBatch | None,
        user_of_row: np.ndarray | None,
        lengths: np.ndarray,
    ) -> None:
        inputs = self._inputs
        self._sections[:] = inputs.header
        self._sections[0] = stamp
        if inputs.user_of_row is not None:
            inputs.user_of_row[:] = user_of_row
        for view, source in self._dense:
            view[...] = item.dense[source] if user is None or source in item.dense else user.dense[source]
        for view, source in self._integers:
            view[...] = (item if user is None or source in item.ids else user).integers(source)
        for view, number in self._lengths:
            view[...] = lengths[number]
