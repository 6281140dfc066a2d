// OverlayTable for Python.
#include <nanobind/nanobind.h>

#include "table/bind_arrays.h"
#include "table/overlay.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace emberline::bind {

void bind_overlay(nb::module_& module) {
  nb::class_<OverlayTable>(
      module, "OverlayTable",
      "Staged deltas over one table: the entries of overlays 0 to 62 for an id, seen by a mask of them.\n\n"
      "The entry of an id that was staged last covers its others. Readers take no lock; one writer at a time.")
      .def(
          "__init__",
          [](OverlayTable* self, std::uint32_t dim, const std::string& row_type) {
            new (self) OverlayTable(dim, row_type_named(row_type));
          },
          "dim"_a, nb::kw_only(), "row_type"_a = "fp32")
      .def_prop_ro("dim", &OverlayTable::dim)
      .def_prop_ro("row_type", [](const OverlayTable& table) { return row_type_name(table.format().type); })
      .def("size", &OverlayTable::size, "Returns the number of ids that any overlay has an entry for.")
      .def("entries", &OverlayTable::entries, "overlay"_a,
           "Returns the entries of one overlay: rows, removed and spilled ids.")
      .def("memory_bytes", &OverlayTable::memory_bytes, nb::call_guard<nb::gil_scoped_release>(),
           "Bytes of memory that index, chains, rows and remembered ids take.")
      .def(
          "stage",
          [](OverlayTable& table, std::uint32_t overlay, nb::handle ids, nb::handle rows, int kind) {
            if (kind < 0 || kind > 2) fail("kind: expected 0 row, 1 removed or 2 spilled, got " + std::to_string(kind));
            const Ids id = Ids::of_rank(1, ids, "ids");
            RowInput data;
            if (kind == 0) {
              data = RowsArgument(rows, "rows", id.size(), table.dim(), table.format().bytes()).input();
            } else if (!rows.is_none()) {
              fail("rows: removed and spilled ids have none here, expected None");
            }
            const nb::gil_scoped_release release;
            table.stage(overlay, id.data(), id.size(), data, static_cast<CoverState>(kind + 1));
          },
          "overlay"_a, "ids"_a, "rows"_a.none(), "kind"_a,
          nb::sig("def stage(self, overlay: int, ids: numpy.typing.NDArray[numpy.int64], rows: "
                  "numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8] | None, kind: int) -> None"),
          "Stages ids (n,) on top of earlier ones. kind: 0 row, with rows (n, dim) or encoded; 1 removed, 2 spilled, "
          "with\n"
          "None.\n\n"
          "All ids are staged or none. Raises ValueError for an id that the overlay has already, CapacityExceeded.")
      .def(
          "discard",
          [](OverlayTable& table, std::uint32_t overlay, std::uint64_t limit) {
            const nb::gil_scoped_release release;
            return table.discard(overlay, limit == 0 ? SIZE_MAX : limit);
          },
          "overlay"_a, "limit"_a = 0,
          "Drops the overlay's entries wherever they stand, at most `limit` of them, the last staged first; 0: all.\n\n"
          "Returns how many were dropped. The number may be staged anew when no mask in use has its bit.")
      .def(
          "find",
          [](const OverlayTable& table, std::uint64_t mask, nb::handle ids, nb::handle out, nb::handle states,
             nb::handle overlays) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const ArrayView<float> to(out, "out", {id.size(), table.dim()});
            const ArrayView<std::uint8_t> state(states, "states", {id.size()});
            const ArrayView<std::uint8_t> overlay(overlays, "overlays", {id.size()});
            const nb::gil_scoped_release release;
            return table.find(mask, id.data(), id.size(), to.data(), state.data(), overlay.data());
          },
          "mask"_a, "ids"_a, "out"_a, "states"_a, "overlays"_a,
          nb::sig("def find(self, mask: int, ids: numpy.typing.NDArray[numpy.int64], out: "
                  "numpy.typing.NDArray[numpy.float32], "
                  "states: numpy.typing.NDArray[numpy.uint8], overlays: numpy.typing.NDArray[numpy.uint8]) -> int"),
          "Finds the entry of the newest overlay in the mask for ids (n,), written in place.\n\n"
          "out (n, dim), zeros without a row; states (n,) 0 not covered, 1 row, 2 removed, 3 spilled; overlays (n,), "
          "255\n"
          "where not covered. Returns the number covered.")
      .def(
          "copy_rows",
          [](const OverlayTable& table, std::uint64_t mask, nb::handle ids, nb::handle rows, nb::handle at,
             nb::handle states, std::size_t threads) {
            if (threads < 1 || threads > 64) fail("threads: expected 1 to 64, got " + std::to_string(threads));
            const Ids id = Ids::of_rank(1, ids, "ids");
            const auto row = ArrayView<std::uint8_t>::of_rank(2, rows, "rows");
            if (row.size() != id.size() || row.shape(1) < table.format().bytes()) {
              fail("rows: expected " + std::to_string(id.size()) + " of " + std::to_string(table.format().bytes()) +
                   " bytes or more each, got " + shape_text({row.size(), row.shape(1)}));
            }
            const ArrayView<std::int64_t> place(at, "at", {id.size()});
            const ArrayView<std::uint8_t> state(states, "states", {id.size()});
            const nb::gil_scoped_release release;
            return table.copy_rows(mask, id.data(), id.size(), row.data(), row.shape(1), place.data(), state.data(),
                                   threads);
          },
          "mask"_a, "ids"_a, "rows"_a, "at"_a, "states"_a, "threads"_a = 1,
          nb::sig("def copy_rows(self, mask: int, ids: numpy.typing.NDArray[numpy.int64], rows: "
                  "numpy.typing.NDArray[numpy.uint8], "
                  "at: numpy.typing.NDArray[numpy.int64], states: numpy.typing.NDArray[numpy.uint8], threads: int = 1) "
                  "-> int"),
          "Finds as `find` does, and copies existing encoded rows, one behind the other, to rows (n, stride), with "
          "zeros\n"
          "behind each.\n\n"
          "at (n,): index of each row's id. Returns the number of rows. More than one thread gives them in any order.")
      .def(
          "ids",
          [](const OverlayTable& table, std::uint32_t overlay) {
            StagedIds staged;
            {
              const nb::gil_scoped_release release;
              staged = table.staged(overlay);
            }
            std::vector<std::uint8_t> kinds;
            kinds.reserve(staged.states.size());
            for (const CoverState state : staged.states) kinds.push_back(static_cast<std::uint8_t>(state) - 1);
            return nb::make_tuple(to_numpy(std::move(staged.ids)), to_numpy(std::move(kinds)));
          },
          "overlay"_a,
          nb::sig("def ids(self, overlay: int) -> tuple[numpy.typing.NDArray[numpy.int64], "
                  "numpy.typing.NDArray[numpy.uint8]]"),
          "Returns ids (n,) of an overlay in the order in which they were staged, and their kinds (n,).")
      .def("check_integrity", &OverlayTable::check_integrity, nb::call_guard<nb::gil_scoped_release>(),
           "Raises RuntimeError that says which rule of the chains is broken. Slow; for tests.");
}

}  // namespace emberline::bind
