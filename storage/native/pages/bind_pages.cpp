// The Python module: reading many tables' rows at once, the set of changed ids, and what errors become.
#include "pages/bind_pages.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "pages/change_set.h"
#include "pages/crc32c.h"
#include "pages/descriptor.h"
#include "pages/reader.h"
#include "table/bind_arrays.h"

namespace emberline::bind {
namespace {

using pages::ChangeSet;
using pages::Clock;
using pages::Deadline;
using pages::DiskError;
using pages::PageFile;
using pages::PageReader;
using pages::ReaderOptions;
using pages::ReadRequest;
using Flags = ArrayView<std::uint8_t>;

constexpr const char* kReaderDoc = R"(Reads rows of any number of page files. Thread-safe.

io: "uring", "threads" or "auto": io_uring where the kernel allows it. depth: pages of one call in flight.
page_queues: calls that read at the same time; one more waits. threads: number of threads of the fall-back. Raises
OSError where "uring" is refused.)";

constexpr const char* kReadDoc =
    R"(Answers ids of many tables; all their pages are in flight together, and the GIL is free meanwhile.

requests: a list of (file or None, ids (n,) int64, rows (n, row_bytes) uint8, states (n,) uint8). Rows and
states are written in place; a state is ABSENT, FOUND or UNRESOLVED. Rows that are not found are left as they
are. timeout_s: ids that have not been read by then are unresolved; None waits. Nothing is written after the
call. Raises CorruptPageError and OSError, which name file and page; results written before are then void.)";

constexpr const char* kSetDoc = R"(A set of ids that only grows. Thread-safe; `contains` takes no lock.)";

void read(PageReader& reader, const nb::list& list, std::optional<double> timeout_s) {
  Deadline deadline;
  if (timeout_s) {
    if (!(*timeout_s >= 0)) fail("timeout_s: " + std::to_string(*timeout_s) + ", expected 0 or more");
    deadline = Clock::now() +
               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(*timeout_s, 1e6)));
  }
  std::vector<ReadRequest> requests;
  std::vector<Ids> all_ids;  // keep the arrays alive
  std::vector<Flags> all_rows, all_states;
  for (const nb::handle item : list) {
    if (!nb::isinstance<nb::tuple>(item) || nb::len(item) != 4) {
      fail("requests: expected tuples of (file, ids, rows, states), got " + describe(item));
    }
    const auto one = nb::borrow<nb::tuple>(item);
    ReadRequest request;
    if (!one[0].is_none()) request.file = nb::cast<std::shared_ptr<const PageFile>>(one[0]);
    all_ids.push_back(Ids::of_rank(1, one[1], "ids"));
    request.ids = all_ids.back().data();
    request.n = all_ids.back().size();
    if (request.n >> 32 != 0) fail("ids: " + std::to_string(request.n) + " at once, expected less than 2^32");
    if (request.file) {
      all_rows.emplace_back(one[2], "rows", std::vector<std::size_t>{request.n, request.file->geometry().row_bytes});
      request.rows = reinterpret_cast<char*>(all_rows.back().data());
    }
    all_states.emplace_back(one[3], "states", std::vector<std::size_t>{request.n});
    request.states = all_states.back().data();
    requests.push_back(std::move(request));
  }
  const nb::gil_scoped_release nogil;
  reader.read(requests, deadline);
}

nb::dict stats(const PageReader& reader) {
  const pages::ReaderStats now = reader.stats();
  nb::dict all;
  all["pages"] = now.pages;
  all["coalesced"] = now.coalesced;
  all["unresolved"] = now.unresolved;
  all["filtered"] = now.filtered;
  return all;
}

void add(ChangeSet& set, nb::handle array) {
  const Ids ids = Ids::of_rank(1, array, "ids");
  const nb::gil_scoped_release nogil;
  set.add(ids.data(), ids.size());
}

nb::object contains(const ChangeSet& set, nb::handle array) {
  const Ids ids = Ids::of_rank(1, array, "ids");
  std::vector<std::uint8_t> flags(ids.size());
  {
    const nb::gil_scoped_release nogil;
    set.contains(ids.data(), ids.size(), flags.data());
  }
  return to_numpy(std::move(flags));
}

nb::object sorted(const ChangeSet& set) {
  std::vector<std::int64_t> ids;
  {
    const nb::gil_scoped_release nogil;
    ids = set.sorted();
  }
  return to_numpy(std::move(ids));
}

std::uint32_t checksum(nb::bytes data, std::uint32_t before, bool table) {
  return table ? pages::crc32c_table(data.c_str(), data.size(), before)
               : pages::crc32c(data.c_str(), data.size(), before);
}

}  // namespace

NB_MODULE(_pages, m) {
  m.doc() = "Page files: rows that lie on SSD, and their readers and writers.";
  m.attr("ABSENT") = nb::int_(static_cast<int>(pages::kAbsent));
  m.attr("FOUND") = nb::int_(static_cast<int>(pages::kFound));
  m.attr("UNRESOLVED") = nb::int_(static_cast<int>(pages::kUnresolved));

  nb::exception<pages::CorruptPage>(m, "CorruptPageError");
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const DiskError& error) {
      const std::string text = std::string(error.what()) + ": " + std::strerror(error.code);
      // Python chooses the subclass by the number: PermissionError, FileNotFoundError.
      const nb::object value =
          nb::steal(PyObject_CallFunction(PyExc_OSError, "iss", error.code, text.c_str(), error.path.c_str()));
      if (value.is_valid()) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())), value.ptr());
    }
  });

  bind_files(m);

  nb::class_<PageReader>(m, "PageReader", kReaderDoc)
      .def(
          "__init__",
          [](PageReader* self, const std::string& io, std::size_t depth, std::size_t page_queues, std::size_t threads) {
            for (const auto& [name, value, most] : {std::tuple{"depth", depth, std::size_t{4096}},
                                                    std::tuple{"page_queues", page_queues, std::size_t{256}},
                                                    std::tuple{"threads", threads, std::size_t{256}}}) {
              if (value < 1 || value > most) {
                fail(std::string(name) + ": " + std::to_string(value) + ", expected 1 to " + std::to_string(most));
              }
            }
            new (self) PageReader(ReaderOptions{io, depth, page_queues, threads});
          },
          nb::kw_only(), nb::arg("io") = "auto", nb::arg("depth") = 64, nb::arg("page_queues") = 16,
          nb::arg("threads") = 32)
      .def("read", &read, nb::arg("requests"), nb::arg("timeout_s") = nb::none(),
           nb::sig("def read(self, requests: list[tuple[PageFile | None, numpy.typing.NDArray[numpy.int64], "
                   "numpy.typing.NDArray[numpy.uint8], numpy.typing.NDArray[numpy.uint8]]], "
                   "timeout_s: float | None = None) -> None"),
           kReadDoc)
      .def("stats", &stats, nb::sig("def stats(self) -> dict[str, int]"),
           "Returns counts since the start: pages read, coalesced reads, unresolved ids, ids absent without a read")
      .def("close", &PageReader::close, nb::call_guard<nb::gil_scoped_release>(),
           "Waits for the reads under way, then frees rings, memory and threads; later reads raise OSError.")
      .def_prop_ro(
          "io", [](const PageReader& reader) { return reader.io(); }, "The way of reading in use, uring or threads");

  nb::class_<ChangeSet>(m, "ChangeSet", kSetDoc)
      .def(nb::init<>())
      .def("add", &add, nb::arg("ids"), nb::sig("def add(self, ids: numpy.typing.NDArray[numpy.int64]) -> None"),
           "Adds ids (n,) int64.")
      .def("contains", &contains, nb::arg("ids"),
           nb::sig("def contains(self, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.uint8]"),
           "Returns (n,) uint8, 1 where an id (n,) int64 was added")
      .def("sorted", &sorted, nb::sig("def sorted(self) -> numpy.typing.NDArray[numpy.int64]"),
           "Returns all ids, ascending")
      .def("__len__", &ChangeSet::size)
      .def_prop_ro("memory_bytes", &ChangeSet::memory_bytes, "Bytes that it takes");

  m.def("crc32c", &checksum, nb::arg("data"), nb::arg("before") = 0, nb::kw_only(), nb::arg("table") = false,
        "Returns the CRC-32C of bytes, continuing from that of the bytes before them. table: without the processor's "
        "own\n"
        "instruction.");
  m.def(
      "folder_reads_direct", [](const std::string& folder) { return pages::folder_reads_direct(folder); },
      nb::arg("folder"), nb::call_guard<nb::gil_scoped_release>(),
      "Returns whether files in a folder can be read past the page cache; tries it with a file of one sector.");
}

}  // namespace emberline::bind
