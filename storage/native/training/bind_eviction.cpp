// The methods of TrainingTable by which ids get rows, and rows go, for Python.
#include "training/bind_training.h"

namespace emberline::bind {
namespace {

using Words = ArrayView<const std::uint32_t>;
using Bytes = ArrayView<const std::uint8_t>;

CountingBloom& bloom_of(const TrainingTable& table) {
  if (table.bloom() == nullptr) fail("the table was made without a filter");
  return *table.bloom();
}

// Called under the table's mutex.
template <class Call>
auto with_bloom(const TrainingTable& table, Call call) {
  CountingBloom& bloom = bloom_of(table);
  const nb::gil_scoped_release release;
  const std::lock_guard lock(table.mutex());
  return call(bloom);
}

nb::object filter_content(const TrainingTable& table, nb::handle pages) {
  const Words page = Words::of_rank(1, pages, "pages");
  for (std::size_t i = 0; i < page.size(); ++i) {
    if (page.data()[i] >= bloom_of(table).pages()) fail("pages: there is no page " + std::to_string(page.data()[i]));
  }
  std::vector<std::uint8_t> content = with_bloom(table, [&](const CountingBloom& bloom) {
    std::vector<std::uint8_t> copied;
    copied.reserve(page.size() * CountingBloom::kPageBytes);
    for (std::size_t i = 0; i < page.size(); ++i) {
      const std::uint8_t* from = bloom.page(page.data()[i]);
      copied.insert(copied.end(), from, from + CountingBloom::kPageBytes);
    }
    return copied;
  });
  return to_numpy(std::move(content), {page.size(), CountingBloom::kPageBytes});
}

// The array keeps the table.
nb::object filter_view(nb::handle self) {
  const CountingBloom& bloom = bloom_of(nb::cast<const TrainingTable&>(self));
  const std::size_t shape[] = {bloom.pages(), CountingBloom::kPageBytes};
  return nb::cast(nb::ndarray<nb::numpy, const std::uint8_t>(bloom.page(0), 2, shape, self));
}

void restore_filter(TrainingTable& table, nb::handle pages, nb::handle content, std::uint32_t bits,
                    std::uint32_t stamp) {
  const Words page = Words::of_rank(1, pages, "pages");
  const Bytes bytes(content, "content", {page.size(), CountingBloom::kPageBytes});
  if (stamp < 1) fail("stamp: must be 1 or more, got 0");
  with_bloom(table, [&](CountingBloom& bloom) { bloom.restore(page.data(), page.size(), bytes.data(), bits, stamp); });
}

nb::object idle(TrainingTable& table, std::uint32_t part, std::uint32_t unused, std::uint32_t norm_after,
                std::uint32_t norm_upto, float norm) {
  std::vector<std::int64_t> ids;
  {
    const nb::gil_scoped_release release;
    ids = table.idle(part, {unused, norm_after, norm_upto, norm});
  }
  return to_numpy(std::move(ids));
}

}  // namespace

void bind_eviction(nb::class_<TrainingTable>& table) {
  table.def_prop_ro("evicts", [](const TrainingTable& self) { return self.options().evicts; })
      .def_prop_ro("tick", &TrainingTable::tick)
      .def("set_tick", &TrainingTable::set_tick, "tick"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Sets the number that later uses carry, 1 at the start. Raises ValueError for a smaller one than before.")
      .def_ro_static("PARTS", &RowParts::kParts, "The parts into which ids are divided by their hash.")
      .def(
          "idle", &idle, "part"_a, "unused"_a, "norm_after"_a, "norm_upto"_a, "norm"_a,
          nb::sig("def idle(self, part: int, unused: int, norm_after: int, norm_upto: int, norm: float) -> "
                  "numpy.typing.NDArray[numpy.int64]"),
          "Returns ids (n,) ascending of idle rows in one part: those used last at tick `unused` or before, and those\n"
          "used last at a tick in (norm_after, norm_upto] whose Euclidean norm is below `norm`.");
}

void bind_bloom(nb::class_<TrainingTable>& table) {
  table
      .def_prop_ro(
          "filter_shape",
          [](const TrainingTable& self) {
            const CountingBloom* bloom = self.bloom();
            if (bloom == nullptr) return nb::make_tuple(0, 0, 0);
            return nb::make_tuple(bloom->shape().blocks, bloom->shape().probes, bloom->bits());
          },
          nb::sig("def filter_shape(self) -> tuple[int, int, int]"),
          "Blocks of 512 counters, counters of an id, and bits of a counter; zeros without a filter.")
      .def_prop_ro("filter_bytes",
                   [](const TrainingTable& self) { return self.bloom() == nullptr ? 0 : self.bloom()->bytes(); })
      .def(
          "filter_ids",
          [](const TrainingTable& self) {
            return with_bloom(self, [](const CountingBloom& bloom) { return bloom.ids(); });
          },
          "Returns an estimate of the distinct ids that the filter has seen.")
      .def(
          "filter_rate",
          [](const TrainingTable& self) {
            return with_bloom(
                self, [](const CountingBloom& bloom) { return CountingBloom::false_rate(bloom.shape(), bloom.ids()); });
          },
          "Returns the share of unseen ids that have a count in the filter as it is now, by its estimated ids.")
      .def(
          "filter_pages",
          [](const TrainingTable& self, std::uint32_t since) {
            return to_numpy(with_bloom(self, [&](const CountingBloom& bloom) { return bloom.pages_since(since); }));
          },
          "since"_a, nb::sig("def filter_pages(self, since: int) -> numpy.typing.NDArray[numpy.uint32]"),
          "Returns the pages (p,) ascending of the filter that changed after a stamp.")
      .def("filter_content", &filter_content, "pages"_a,
           nb::sig("def filter_content(self, pages: numpy.typing.NDArray[numpy.uint32]) -> "
                   "numpy.typing.NDArray[numpy.uint8]"),
           "Returns a copy (p, 512) of pages of the filter.")
      .def("filter_view", &filter_view, nb::sig("def filter_view(self) -> numpy.typing.NDArray[numpy.uint8]"),
           "Returns all pages (p, 512) without a copy, read-only; they change with the filter.")
      .def(
          "restore_filter", &restore_filter, "pages"_a, "content"_a, "bits"_a, "stamp"_a,
          nb::sig("def restore_filter(self, pages: numpy.typing.NDArray[numpy.uint32], content: "
                  "numpy.typing.NDArray[numpy.uint8], bits: int, stamp: int) -> None"),
          "Puts back pages (p,) and their content (p, 512) of a filter of the same shape, which changed at a stamp.\n\n"
          "bits: of its counters; counts that are too large for those of this table become their largest.");
}

}  // namespace emberline::bind
