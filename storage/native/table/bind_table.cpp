// The Python face of the table: shapes are checked here, then the GIL is released.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "table/lookup.h"
#include "table/table.h"
#include "table/training.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace emberline;

namespace {

using Ids = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutAny = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutFlags = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutMask = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Counts = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
using Array1 = nb::ndarray<nb::numpy, T, nb::ndim<1>, nb::c_contig>;
template <class T>
using Array2 = nb::ndarray<nb::numpy, T, nb::ndim<2>, nb::c_contig>;

void expect(bool holds, const std::string& what) {
  if (!holds) throw nb::value_error(what.c_str());
}

std::string shape(size_t a, size_t b) { return "(" + std::to_string(a) + ", " + std::to_string(b) + ")"; }

template <class A>
void expect_rows(const char* name, const A& array, size_t n, size_t width) {
  expect(array.shape(0) == n && array.shape(1) == width, std::string(name) + ": expected shape " + shape(n, width) + ", got " +
                                                              shape(array.shape(0), array.shape(1)));
}

template <class A>
void expect_length(const char* name, const A& array, size_t n) {
  expect(array.shape(0) == n,
         std::string(name) + ": expected " + std::to_string(n) + " elements, got " + std::to_string(array.shape(0)));
}

// Hands a vector to numpy without a copy.
template <class T>
nb::capsule own(std::vector<T>&& values, T*& data) {
  auto* kept = new std::vector<T>(std::move(values));
  data = kept->data();
  return nb::capsule(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
}

template <class T>
Array1<T> array1(std::vector<T>&& values) {
  const size_t n = values.size();
  T* data = nullptr;
  nb::capsule owner = own(std::move(values), data);
  return Array1<T>(data, {n}, owner);
}

template <class T>
Array2<T> array2(std::vector<T>&& values, size_t rows, size_t width) {
  T* data = nullptr;
  nb::capsule owner = own(std::move(values), data);
  return Array2<T>(data, {rows, width}, owner);
}

Pooling pooling_of(int number) {
  expect(number >= 0 && number <= 2, "pooling: expected 0 (sum), 1 (mean) or 2 (none), got " + std::to_string(number));
  return static_cast<Pooling>(number);
}

void check_dim(uint32_t dim) { expect(dim >= 1 && dim <= 65536, "dim: expected 1 to 65536, got " + std::to_string(dim)); }

// Offsets come from callers: they must rise from 0 to the number of values, or the core would read beyond it.
void check_offsets(const Ids& offsets, size_t values, const std::string& name) {
  const size_t n = offsets.shape(0);
  expect(n >= 1 && offsets.data()[0] == 0, name + ": expected the first offset to be 0");
  for (size_t i = 1; i < n; ++i) expect(offsets.data()[i] >= offsets.data()[i - 1], name + ": offsets must not fall");
  expect(offsets.data()[n - 1] == static_cast<int64_t>(values),
         name + ": expected the last offset to be the number of values, " + std::to_string(values));
}

size_t begin(Lookup& lookup, uint64_t batch, const std::vector<Ids>& values, const std::vector<Ids>& offsets,
             const std::vector<OutAny>& outputs, const nb::list& masks) {
  const auto& features = lookup.features();
  const size_t f = features.size();
  expect(values.size() == f && offsets.size() == f && outputs.size() == f && masks.size() == f,
         "values, offsets, outputs, masks: expected " + std::to_string(f) + " entries each, one a feature");
  std::vector<FeatureBatch> inputs(f);
  for (size_t i = 0; i < f; ++i) {
    const std::string at = "[" + std::to_string(i) + "]";
    const size_t dim = lookup.table(features[i].table).dim();
    expect_length(("offsets" + at).c_str(), offsets[i], batch + 1);
    check_offsets(offsets[i], values[i].shape(0), "offsets" + at);
    const bool rows = features[i].pooling == Pooling::kNone;
    const bool fits = rows ? outputs[i].ndim() == 3 && outputs[i].shape(0) == batch && outputs[i].shape(1) == features[i].length &&
                                 outputs[i].shape(2) == dim
                           : outputs[i].ndim() == 2 && outputs[i].shape(0) == batch && outputs[i].shape(1) == dim;
    expect(fits, "outputs" + at + ": expected (batch, " + (rows ? std::to_string(features[i].length) + ", " : "") + std::to_string(dim) +
                     ") for a batch of " + std::to_string(batch));
    uint8_t* mask = nullptr;
    if (rows) {
      OutMask array;
      expect(nb::try_cast<OutMask>(masks[i], array, false), "masks" + at + ": expected a uint8 array (batch, length)");
      expect_rows(("masks" + at).c_str(), array, batch, features[i].length);
      mask = array.data();
    }
    inputs[i] = {values[i].data(), offsets[i].data(), outputs[i].data(), mask};
  }
  nb::gil_scoped_release release;
  return lookup.begin(batch, inputs);
}

void bind_tables(nb::module_& m) {
  nb::exception<CapacityExceeded>(m, "CapacityExceeded");
  nb::class_<Table>(m, "Table", "One embedding table in DRAM: many lock-free readers beside one writer.")
      .def(
          "__init__",
          [](Table* self, uint32_t dim, uint32_t extra, uint64_t capacity_rows) {
            check_dim(dim);
            new (self) Table(dim, extra, capacity_rows);
          },
          "dim"_a, nb::kw_only(), "extra"_a = 0, "capacity_rows"_a = 0)
      .def_prop_ro("dim", &Table::dim)
      .def_prop_ro("extra", &Table::extra)
      .def_prop_ro("capacity_rows", &Table::capacity_rows)
      .def("size", &Table::size)
      .def("memory_bytes", &Table::memory_bytes)
      .def(
          "find",
          [](const Table& t, Ids ids, OutRows out, OutFlags found) {
            expect_rows("out", out, ids.shape(0), t.dim());
            expect_length("found", found, ids.shape(0));
            nb::gil_scoped_release release;
            return t.find(ids.data(), ids.shape(0), out.data(), found.data());
          },
          "ids"_a.noconvert(), "out"_a.noconvert(), "found"_a.noconvert())
      .def(
          "insert_or_assign",
          [](Table& t, Ids ids, Rows rows) {
            expect_rows("rows", rows, ids.shape(0), t.row_floats());
            nb::gil_scoped_release release;
            t.insert_or_assign(ids.data(), rows.data(), ids.shape(0));
          },
          "ids"_a.noconvert(), "rows"_a.noconvert())
      .def(
          "insert_and_evict",
          [](Table& t, Ids ids, Rows rows) {
            expect_rows("rows", rows, ids.shape(0), t.row_floats());
            expect(t.capacity_rows() > 0, "insert_and_evict: the table has no capacity_rows, so nothing is ever evicted");
            nb::gil_scoped_release release;
            return t.insert_and_evict(ids.data(), rows.data(), ids.shape(0));
          },
          "ids"_a.noconvert(), "rows"_a.noconvert())
      .def(
          "assign",
          [](Table& t, Ids ids, Rows rows) {
            expect_rows("rows", rows, ids.shape(0), t.row_floats());
            nb::gil_scoped_release release;
            return t.assign(ids.data(), rows.data(), ids.shape(0));
          },
          "ids"_a.noconvert(), "rows"_a.noconvert())
      .def(
          "erase",
          [](Table& t, Ids ids) {
            nb::gil_scoped_release release;
            return t.erase(ids.data(), ids.shape(0));
          },
          "ids"_a.noconvert())
      .def("reserve", &Table::reserve, "rows"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "export_batch",
          [](const Table& t, int64_t cursor, size_t limit) {
            expect(cursor >= 0, "cursor: expected 0 or what the last call returned");
            std::vector<int64_t> ids;
            std::vector<float> rows;
            std::vector<uint8_t> scores;
            int64_t next = 0;
            {
              nb::gil_scoped_release release;
              next = t.export_batch(cursor, limit, ids, rows, scores);
            }
            const size_t n = ids.size();
            return nb::make_tuple(next, array1(std::move(ids)), array2(std::move(rows), n, t.row_floats()), array1(std::move(scores)));
          },
          "cursor"_a, "limit"_a,
          nb::sig("def export_batch(self, cursor: int, limit: int) -> tuple[int, NDArray[numpy.int64], NDArray[numpy.float32], "
                  "NDArray[numpy.uint8]]"))
      .def("check_integrity", &Table::check_integrity, nb::call_guard<nb::gil_scoped_release>());
}

void bind_lookup(nb::module_& m) {
  nb::class_<Lookup>(m, "Lookup", "One batch over many tables and features. One a lane; not thread-safe.")
      .def(
          "__init__",
          [](Lookup* self, std::vector<std::shared_ptr<Table>> tables, const std::vector<std::tuple<uint32_t, int, uint32_t>>& features) {
            std::vector<FeatureLookup> lookups;
            for (const auto& [table, pooling, length] : features) {
              expect(table < tables.size(), "features: expected a table number below " + std::to_string(tables.size()));
              expect(pooling != 2 || length > 0, "features: pooling none needs a length above 0");
              lookups.push_back({table, pooling_of(pooling), length});
            }
            new (self) Lookup(std::move(tables), std::move(lookups));
          },
          "tables"_a, "features"_a)
      .def("begin", &begin, "batch"_a, "values"_a, "offsets"_a, "outputs"_a, "masks"_a)
      .def(
          "missing",
          [](const Lookup& l, size_t table) {
            expect(table < l.tables(), "table: expected a number below " + std::to_string(l.tables()));
            return array1(std::vector<int64_t>(l.missing(table)));
          },
          "table"_a)
      .def(
          "supply",
          [](Lookup& l, size_t table, Rows rows, Flags state) {
            expect(table < l.tables(), "table: expected a number below " + std::to_string(l.tables()));
            const size_t m = l.missing(table).size();
            expect_rows("rows", rows, m, l.table(table).dim());
            expect_length("state", state, m);
            for (size_t i = 0; i < m; ++i) expect(state.data()[i] <= 2, "state: expected 0 absent, 1 found or 2 unresolved");
            l.supply(table, rows.data(), state.data());
          },
          "table"_a, "rows"_a.noconvert(), "state"_a.noconvert())
      .def("finish", [](Lookup& l) {
        LookupCounts counts;
        {
          nb::gil_scoped_release release;
          counts = l.finish();
        }
        return std::make_tuple(counts.resident, counts.supplied, counts.absent, counts.unresolved);
      });
}

void bind_training(nb::module_& m) {
  nb::class_<TrainingTable>(m, "TrainingTable", "A table that is trained: counter admission, fused sparse optimizers. One thread at a time.")
      .def(
          "__init__",
          [](TrainingTable* self, uint32_t dim, uint32_t slots, uint64_t seed, float init_scale, uint32_t admit_after) {
            check_dim(dim);
            new (self) TrainingTable({dim, slots, seed, init_scale, admit_after});
          },
          "dim"_a, nb::kw_only(), "slots"_a, "seed"_a, "init_scale"_a, "admit_after"_a)
      .def_prop_ro("dim", [](const TrainingTable& t) { return t.options().dim; })
      .def_prop_ro("slots", [](const TrainingTable& t) { return t.options().slots; })
      .def("size", &TrainingTable::size)
      .def("memory_bytes", &TrainingTable::memory_bytes)
      .def(
          "lookup",
          [](TrainingTable& t, Ids ids, OutRows out, bool train, float initial_slot) {
            expect_rows("out", out, ids.shape(0), t.options().dim);
            nb::gil_scoped_release release;
            return t.lookup(ids.data(), ids.shape(0), out.data(), train, initial_slot);
          },
          "ids"_a.noconvert(), "out"_a.noconvert(), "train"_a, "initial_slot"_a)
      .def(
          "pool",
          [](TrainingTable& t, Ids values, Ids offsets, int mode, OutRows out, bool train, float initial_slot) {
            check_offsets(offsets, values.shape(0), "offsets");
            expect_rows("out", out, offsets.shape(0) - 1, t.options().dim);
            const Pooling pooling = pooling_of(mode);
            expect(pooling != Pooling::kNone, "mode: expected 0 (sum) or 1 (mean); use lookup for single rows");
            nb::gil_scoped_release release;
            return t.pool(values.data(), offsets.data(), offsets.shape(0) - 1, pooling, out.data(), train, initial_slot);
          },
          "values"_a.noconvert(), "offsets"_a.noconvert(), "mode"_a, "out"_a.noconvert(), "train"_a, "initial_slot"_a)
      .def_static(
          "pool_backward",
          [](Ids offsets, int mode, Rows grad) {
            const size_t bags = grad.shape(0), dim = grad.shape(1);
            expect_length("offsets", offsets, bags + 1);
            const size_t n = static_cast<size_t>(offsets.data()[bags]);
            check_offsets(offsets, n, "offsets");
            std::vector<float> out(n * dim);
            const Pooling pooling = pooling_of(mode);
            {
              nb::gil_scoped_release release;
              expand_gradient(offsets.data(), bags, dim, pooling, grad.data(), out.data());
            }
            return array2(std::move(out), n, dim);
          },
          "offsets"_a.noconvert(), "mode"_a, "grad"_a.noconvert())
      .def(
          "adagrad",
          [](TrainingTable& t, Ids ids, Rows grads, float lr, float eps) {
            expect_rows("grads", grads, ids.shape(0), t.options().dim);
            expect(t.options().slots == t.options().dim, "adagrad: the table needs dim optimizer slots a row");
            nb::gil_scoped_release release;
            return t.adagrad(ids.data(), grads.data(), ids.shape(0), lr, eps);
          },
          "ids"_a.noconvert(), "grads"_a.noconvert(), "lr"_a, "eps"_a)
      .def(
          "sgd",
          [](TrainingTable& t, Ids ids, Rows grads, float lr) {
            expect_rows("grads", grads, ids.shape(0), t.options().dim);
            nb::gil_scoped_release release;
            return t.sgd(ids.data(), grads.data(), ids.shape(0), lr);
          },
          "ids"_a.noconvert(), "grads"_a.noconvert(), "lr"_a)
      .def("export_rows",
           [](const TrainingTable& t) {
             TrainedRows out;
             {
               nb::gil_scoped_release release;
               out = t.export_rows();
             }
             const size_t n = out.ids.size();
             return nb::make_tuple(array1(std::move(out.ids)), array2(std::move(out.rows), n, t.options().dim),
                                   array2(std::move(out.slots), n, t.options().slots), array1(std::move(out.counts)));
           })
      .def("export_counts",
           [](const TrainingTable& t) {
             std::vector<int64_t> ids;
             std::vector<uint32_t> counts;
             t.export_waiting(ids, counts);
             return nb::make_tuple(array1(std::move(ids)), array1(std::move(counts)));
           })
      .def(
          "restore",
          [](TrainingTable& t, Ids ids, Rows rows, Rows slots, Counts counts) {
            const size_t n = ids.shape(0);
            expect_rows("rows", rows, n, t.options().dim);
            expect_rows("slots", slots, n, t.options().slots);
            expect_length("counts", counts, n);
            nb::gil_scoped_release release;
            t.restore(ids.data(), rows.data(), slots.data(), counts.data(), n);
          },
          "ids"_a.noconvert(), "rows"_a.noconvert(), "slots"_a.noconvert(), "counts"_a.noconvert())
      .def(
          "restore_counts",
          [](TrainingTable& t, Ids ids, Counts counts) {
            expect_length("counts", counts, ids.shape(0));
            t.restore_waiting(ids.data(), counts.data(), ids.shape(0));
          },
          "ids"_a.noconvert(), "counts"_a.noconvert());
}

}  // namespace

NB_MODULE(_table, m) {
  m.doc() = "The DRAM table, batch lookups over many tables, and trained tables. Source: storage/native/table.";
  bind_tables(m);
  bind_lookup(m);
  bind_training(m);
}
