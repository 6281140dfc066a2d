// Python's view of page files: writing, merging, walking over them.
#include "pages/bind_pages.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "pages/file.h"
#include "pages/merge.h"
#include "pages/order.h"
#include "pages/writer.h"
#include "table/bind_arrays.h"

namespace emberline::bind {
namespace {

using pages::ChangesMerge;
using pages::PageCursor;
using pages::PageFile;
using pages::PageWriter;
using pages::RunsMerge;
using Bytes = ArrayView<const std::uint8_t>;

constexpr const char* kFileDoc =
    R"(A page file, open for reading: rows of one table, sorted by id, in pages that are checked one by one.

It never changes. Any number of threads may read it, also when its name is gone from the folder.)";

constexpr const char* kOpenDoc = R"(Opens a file; its directory and filters are read into memory.

direct: rows are read past the page cache, where the file system does that. Raises CorruptPageError for a file
that is not as it was written, OSError.)";

constexpr const char* kScanDoc =
    R"(Returns the rows from id `first` on, at most `limit`: ids (n,) int64 ascending, rows (n, row_bytes) uint8.

Raises CorruptPageError, OSError.)";

constexpr const char* kProblemsDoc =
    R"(Reads pages `first` to before `first + count` and returns a text for each page that is damaged.

Raises OSError.)";

constexpr const char* kWriterDoc =
    R"(Writes a page file; it appears under its name when `finish` has it on the disk. Not thread-safe.

row_bytes: bytes of one encoded row. row_type: a word of at most 15 characters. bits_per_id: size of the Bloom
filters. Raises ValueError for sizes that cannot be laid out, OSError.)";

constexpr const char* kAppendDoc =
    R"(Adds rows. ids: (n,) int64, strictly ascending over all calls. rows: (n, row_bytes) uint8.

Raises ValueError for ids that are not ascending, OSError.)";

constexpr const char* kSortDoc =
    R"(Adds rows as `append` does, for ids in any order: they are sorted here, their rows are not moved before they are
written.

Takes 32 bytes of memory an id while it runs.)";

constexpr const char* kChangesMergeDoc = R"(Copies a file into a writer with changes on top of it, in bounded steps.

base: None when there are only changes.)";

constexpr const char* kOfferDoc = R"(Offers the next changes, when all earlier ones are taken.

ids: (n,) int64, ascending over all calls. removed: (n,) uint8, not 0 where the id has no row any more. rows:
(n, row_bytes) uint8.)";

constexpr const char* kAdvanceDoc =
    R"(Works until all that was offered is taken (returns True), or about `bytes` bytes were written (returns False).)";

constexpr const char* kRunsMergeDoc =
    R"(Copies sorted files into a writer as one, in bounded steps. An id in two of them is a ValueError.)";

nb::tuple scan(const std::shared_ptr<const PageFile>& file, std::int64_t first, std::size_t limit) {
  const std::size_t row_bytes = file->geometry().row_bytes;
  std::vector<std::int64_t> ids;
  std::vector<std::uint8_t> rows;
  {
    const nb::gil_scoped_release nogil;
    for (PageCursor cursor(file, first); !cursor.at_end() && ids.size() < limit;) {
      const std::size_t n = std::min(cursor.together(), limit - ids.size());
      const auto* const bytes = reinterpret_cast<const std::uint8_t*>(cursor.rows());
      ids.insert(ids.end(), cursor.ids(), cursor.ids() + n);
      rows.insert(rows.end(), bytes, bytes + n * row_bytes);
      cursor.advance(n);
    }
  }
  const std::size_t n = ids.size();
  return nb::make_tuple(to_numpy(std::move(ids)), to_numpy(std::move(rows), {n, row_bytes}));
}

void append(PageWriter& writer, nb::handle ids_array, nb::handle rows_array, bool sort) {
  const Ids ids = Ids::of_rank(1, ids_array, "ids");
  const Bytes rows(rows_array, "rows", {ids.size(), writer.row_bytes()});
  const char* const bytes = reinterpret_cast<const char*>(rows.data());
  const nb::gil_scoped_release nogil;
  if (sort && !pages::strictly_ascending(ids.data(), ids.size())) {
    const std::vector<std::uint32_t> order = pages::order_of(ids.data(), ids.size());
    writer.append(ids.data(), bytes, ids.size(), order.data());
  } else {
    writer.append(ids.data(), bytes, ids.size());
  }
}

void offer(ChangesMerge& merge, nb::handle ids_array, nb::handle rows_array, nb::handle removed_array) {
  const Ids ids = Ids::of_rank(1, ids_array, "ids");
  const Bytes rows(rows_array, "rows", {ids.size(), merge.row_bytes()});
  const Bytes removed(removed_array, "removed", {ids.size()});
  const nb::gil_scoped_release nogil;
  merge.offer(ids.data(), reinterpret_cast<const char*>(rows.data()), removed.data(), ids.size());
}

}  // namespace

void bind_files(nb::module_& m) {
  nb::class_<PageFile>(m, "PageFile", kFileDoc)
      .def_static(
          "open", [](const std::string& path, bool direct) { return PageFile::open(path, direct); }, nb::arg("path"),
          nb::kw_only(), nb::arg("direct") = false, nb::call_guard<nb::gil_scoped_release>(), kOpenDoc)
      .def_prop_ro("path", &PageFile::path, "Path under which it was opened")
      .def_prop_ro(
          "table", [](const PageFile& f) { return f.header().table; }, "Number of the table")
      .def_prop_ro(
          "rows", [](const PageFile& f) { return f.header().rows; }, "Number of rows")
      .def_prop_ro(
          "pages", [](const PageFile& f) { return f.header().pages; }, "Number of pages")
      .def_prop_ro(
          "page_bytes", [](const PageFile& f) { return f.header().page_bytes; }, "Bytes of a page")
      .def_prop_ro(
          "row_bytes", [](const PageFile& f) { return f.header().row_bytes; }, "Bytes of an encoded row")
      .def_prop_ro("row_type", &PageFile::row_type, "Encoding of the rows, as the writer named it")
      .def_prop_ro(
          "first_id", [](const PageFile& f) { return f.header().first_id; }, "Lowest id; 0 without rows")
      .def_prop_ro(
          "last_id", [](const PageFile& f) { return f.header().last_id; }, "Highest id; 0 without rows")
      .def_prop_ro(
          "file_bytes", [](const PageFile& f) { return f.header().file_bytes; }, "Bytes on the disk")
      .def_prop_ro("memory_bytes", &PageFile::memory_bytes, "Bytes of memory that the directory and the filters take")
      .def_prop_ro("direct", &PageFile::direct, "True if rows are read past the page cache")
      .def("scan", &scan, nb::arg("first"), nb::arg("limit"),
           nb::sig("def scan(self, first: int, limit: int) -> tuple[numpy.typing.NDArray[numpy.int64], "
                   "numpy.typing.NDArray[numpy.uint8]]"),
           kScanDoc)
      .def("problems", &PageFile::problems, nb::arg("first"), nb::arg("count"),
           nb::call_guard<nb::gil_scoped_release>(), kProblemsDoc);

  nb::class_<PageWriter>(m, "PageWriter", kWriterDoc)
      .def(
          "__init__",
          [](PageWriter* self, const std::string& path, std::uint32_t table, std::size_t row_bytes,
             const std::string& row_type,
             int bits_per_id) { new (self) PageWriter(path, {table, row_bytes, row_type, bits_per_id}); },
          nb::arg("path"), nb::kw_only(), nb::arg("table"), nb::arg("row_bytes"), nb::arg("row_type") = "fp32",
          nb::arg("bits_per_id") = 10)
      .def(
          "append", [](PageWriter& w, nb::handle ids, nb::handle rows) { append(w, ids, rows, false); }, nb::arg("ids"),
          nb::arg("rows"),
          nb::sig("def append(self, ids: numpy.typing.NDArray[numpy.int64], rows: numpy.typing.NDArray[numpy.uint8]) "
                  "-> None"),
          kAppendDoc)
      .def(
          "append_sorting", [](PageWriter& w, nb::handle ids, nb::handle rows) { append(w, ids, rows, true); },
          nb::arg("ids"), nb::arg("rows"),
          nb::sig("def append_sorting(self, ids: numpy.typing.NDArray[numpy.int64], rows: "
                  "numpy.typing.NDArray[numpy.uint8]) -> None"),
          kSortDoc)
      .def("finish", &PageWriter::finish, nb::call_guard<nb::gil_scoped_release>(),
           "Ends the file: it is on the disk, under its name, when this returns. Raises OSError.")
      .def_prop_ro("rows", &PageWriter::rows, "Rows so far")
      .def_prop_ro("last_id", &PageWriter::last_id, "The id of the last row; 0 before the first")
      .def_prop_ro("bytes", &PageWriter::bytes, "Bytes of pages so far");

  nb::class_<ChangesMerge>(m, "ChangesMerge", kChangesMergeDoc)
      .def(nb::init<std::shared_ptr<const PageFile>, PageWriter&>(), nb::arg("base").none(), nb::arg("writer"),
           nb::keep_alive<1, 3>())
      .def("offer", &offer, nb::arg("ids"), nb::arg("rows"), nb::arg("removed"),
           nb::sig("def offer(self, ids: numpy.typing.NDArray[numpy.int64], rows: numpy.typing.NDArray[numpy.uint8], "
                   "removed: numpy.typing.NDArray[numpy.uint8]) -> None"),
           kOfferDoc)
      .def("advance", &ChangesMerge::advance, nb::arg("bytes"), nb::call_guard<nb::gil_scoped_release>(), kAdvanceDoc)
      .def("finish", &ChangesMerge::finish, nb::arg("bytes"), nb::call_guard<nb::gil_scoped_release>(),
           "Works as `advance` does on what is left of the base; the writer is finished by its owner.");

  nb::class_<RunsMerge>(m, "RunsMerge", kRunsMergeDoc)
      .def(nb::init<const std::vector<std::shared_ptr<const PageFile>>&, PageWriter&>(), nb::arg("runs"),
           nb::arg("writer"), nb::keep_alive<1, 3>())
      .def("advance", &RunsMerge::advance, nb::arg("bytes"), nb::call_guard<nb::gil_scoped_release>(),
           "Works until all is written (returns True), or about `bytes` bytes were (returns False).\n\n"
           "Raises ValueError, OSError.");
}

}  // namespace emberline::bind
