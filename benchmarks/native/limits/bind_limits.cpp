// The module `_limits`: what this machine can do at best, for benchmarks. The GIL is released once arguments are
// checked.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <system_error>
#include <tuple>

#include "limits/disk.h"
#include "limits/memory.h"
#include "limits/open_load.h"
#include "table/bind_arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace emberline::bind {
namespace {

const limits::Kernels& kernels_of(const std::string& isa) {
  if (isa.empty()) return limits::best_kernels();
  if (isa == "portable") return limits::portable_kernels();
  const limits::Kernels* kernels = isa == "avx2"     ? limits::avx2_kernels()
                                   : isa == "avx512" ? limits::avx512_kernels()
                                                     : nullptr;
  if (kernels == nullptr) fail("isa: expected portable, or avx2 or avx512 where the processor has them, got " + isa);
  return *kernels;
}

void bind_index(nb::module_& module) {
  nb::class_<limits::IndexLimit>(
      module, "IndexLimit",
      "The probe alone: unique ids (n,) in 64-byte lines of eight, four fifths full. 0 is no id here.")
      .def(
          "__init__",
          [](limits::IndexLimit* self, nb::handle ids, const std::string& isa) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const limits::Kernels& kernels = kernels_of(isa);
            const nb::gil_scoped_release release;
            new (self) limits::IndexLimit(id.data(), id.size(), kernels);
          },
          "ids"_a, "isa"_a = "",
          nb::sig("def __init__(self, ids: numpy.typing.NDArray[numpy.int64], isa: str = '') -> None"))
      .def("size", &limits::IndexLimit::size, "Ids that it holds.")
      .def("memory_bytes", &limits::IndexLimit::bytes, "Bytes that the lines take.")
      .def_prop_ro("isa", [](const limits::IndexLimit& self) { return std::string(self.isa()); })
      .def(
          "find",
          [](const limits::IndexLimit& self, nb::handle ids, nb::handle places) {
            const Ids id = Ids::of_rank(1, ids, "ids");
            const ArrayView<std::uint32_t> out(places, "places", {id.size()});
            const nb::gil_scoped_release release;
            return self.find(id.data(), id.size(), out.data());
          },
          "ids"_a, "places"_a,
          nb::sig("def find(self, ids: numpy.typing.NDArray[numpy.int64], places: numpy.typing.NDArray[numpy.uint32]) "
                  "-> int"),
          "ids (n,), places (n,) written: 2^32 - 1 where absent. Returns the number found.");
}

void bind_rows(nb::module_& module) {
  nb::class_<limits::RowLimit>(
      module, "RowLimit", "float32 rows by their number, without any index, on 2 MB pages. Row i holds the value i.")
      .def(
          "__init__",
          [](limits::RowLimit* self, std::size_t rows, std::size_t dim, const std::string& isa) {
            const limits::Kernels& kernels = kernels_of(isa);
            const nb::gil_scoped_release release;
            new (self) limits::RowLimit(rows, dim, kernels);
          },
          "rows"_a, "dim"_a, "isa"_a = "")
      .def_prop_ro("rows", &limits::RowLimit::rows)
      .def_prop_ro("dim", &limits::RowLimit::dim)
      .def_prop_ro("isa", [](const limits::RowLimit& self) { return std::string(self.isa()); })
      .def(
          "gather",
          [](const limits::RowLimit& self, nb::handle numbers, nb::handle out) {
            const Ids number = Ids::of_rank(1, numbers, "numbers");
            const ArrayView<float> to(out, "out", {number.size(), self.dim()});
            const nb::gil_scoped_release release;
            self.gather(number.data(), number.size(), to.data());
          },
          "numbers"_a, "out"_a,
          nb::sig("def gather(self, numbers: numpy.typing.NDArray[numpy.int64], out: "
                  "numpy.typing.NDArray[numpy.float32]) -> None"),
          "numbers (n,), out (n, dim) written: copies. Raises IndexError for a number that is no row.")
      .def(
          "pool",
          [](const limits::RowLimit& self, nb::handle numbers, nb::handle offsets, nb::handle out) {
            const Ids number = Ids::of_rank(1, numbers, "numbers");
            const Ids ends = Ids::of_rank(1, offsets, "offsets");
            if (ends.size() == 0) fail("offsets: expected one more than there are bags, got none");
            const std::size_t bags = ends.size() - 1;
            const ArrayView<float> to(out, "out", {bags, self.dim()});
            const nb::gil_scoped_release release;
            self.pool(number.data(), number.size(), ends.data(), bags, to.data());
          },
          "numbers"_a, "offsets"_a, "out"_a,
          nb::sig("def pool(self, numbers: numpy.typing.NDArray[numpy.int64], offsets: "
                  "numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[numpy.float32]) -> None"),
          "numbers (n,), offsets (bags + 1,), out (bags, dim) written: sums. Raises as gather, ValueError for bad "
          "offsets.");
}

void bind_bytes(nb::module_& module) {
  nb::class_<limits::ByteLimit>(module, "ByteLimit", "Bytes on 2 MB pages, to be read or copied from end to end.")
      .def(nb::init<std::size_t>(), "bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("memory_bytes", &limits::ByteLimit::bytes, "Bytes that one read or one copy covers.")
      .def("read", &limits::ByteLimit::read, nb::call_guard<nb::gil_scoped_release>(),
           "Reads all of them once; returns a sum.")
      .def("copy", &limits::ByteLimit::copy, nb::call_guard<nb::gil_scoped_release>(), "Copies all of them once.");
}

void bind_disk(nb::module_& module) {
  module.def("has_io_uring", &limits::has_io_uring, "Returns whether this system lets a process use io_uring.");
  module.def(
      "random_reads",
      [](const std::string& path, std::size_t block_bytes, unsigned depth, std::size_t count, std::uint64_t seed,
         const std::string& engine) {
        try {
          const nb::gil_scoped_release release;
          const limits::RandomReads reads = limits::random_reads(path, block_bytes, depth, count, seed, engine);
          return std::make_tuple(reads.per_second, reads.engine);
        } catch (const std::system_error& error) {
          PyErr_SetString(PyExc_OSError, error.what());
          throw nb::python_error();
        }
      },
      "path"_a, nb::kw_only(), "block_bytes"_a = 4096, "depth"_a = 32, "count"_a, "seed"_a = 0, "engine"_a = "",
      "Reads `count` random blocks of a file with O_DIRECT, `depth` under way: reads a second, and by which engine.\n\n"
      "engine: io_uring, threads, or empty for the best that works. Raises OSError, ValueError.");
}

void bind_load(nb::module_& module) {
  module.def(
      "open_load",
      [](int port, const std::vector<nb::bytes>& given, double rate, double seconds, int connections) {
        std::vector<std::string> requests;
        for (const nb::bytes& each : given) requests.emplace_back(each.c_str(), each.size());
        std::vector<limits::Sent> sent;
        {
          const nb::gil_scoped_release release;
          sent = limits::open_load(port, requests, rate, seconds, connections);
        }
        std::vector<std::tuple<double, double, int>> found;
        for (const limits::Sent& each : sent) found.emplace_back(each.sent_s, each.ms, each.status);
        return found;
      },
      "port"_a, "requests"_a, nb::kw_only(), "rate"_a, "seconds"_a, "connections"_a,
      "Sends whole HTTP requests, in turn, at a fixed rate: for each when it was sent, in seconds from the start, its\n"
      "latency in ms, and its status.\n\n"
      "rate: a second; 0 for as many as the connections take, each one request at a time. Raises RuntimeError.");
}

}  // namespace
}  // namespace emberline::bind

NB_MODULE(_limits, module) {
  module.doc() = "Measures what this machine can do at best, for benchmarks. The core is benchmarks/native/limits.";
  emberline::bind::bind_index(module);
  emberline::bind::bind_rows(module);
  emberline::bind::bind_bytes(module);
  emberline::bind::bind_disk(module);
  emberline::bind::bind_load(module);
}
