#include "pages/change_set.h"

#include <algorithm>

#include "pages/filter.h"

namespace emberline::pages {
namespace {

// Marks a free place. Any id would do; a rare one saves a branch that is taken.
constexpr std::int64_t kFree = 0x5F3A9C1E77D24B86;
constexpr std::size_t kFirstPlaces = 64;

std::size_t place_of(std::int64_t id, std::size_t mask) { return static_cast<std::size_t>(filter_hash(id)) & mask; }

}  // namespace

ChangeSet::Array::Array(std::size_t places) : ids(new std::atomic<std::int64_t>[places]), mask(places - 1) {
  for (std::size_t i = 0; i < places; ++i) ids[i].store(kFree, std::memory_order_relaxed);
}

ChangeSet::ChangeSet() {
  arrays_.push_back(std::make_unique<Array>(kFirstPlaces));
  newest_.store(arrays_.back().get(), std::memory_order_release);
}

bool ChangeSet::put(Array& array, std::int64_t id) {
  for (std::size_t place = place_of(id, array.mask);; place = (place + 1) & array.mask) {
    const std::int64_t there = array.ids[place].load(std::memory_order_relaxed);
    if (there == id) return false;
    if (there == kFree) {
      array.ids[place].store(id, std::memory_order_release);
      return true;
    }
  }
}

bool ChangeSet::has(const Array& array, std::int64_t id) {
  for (std::size_t place = place_of(id, array.mask);; place = (place + 1) & array.mask) {
    const std::int64_t there = array.ids[place].load(std::memory_order_acquire);
    if (there == id) return true;
    if (there == kFree) return false;
  }
}

void ChangeSet::add(const std::int64_t* ids, std::size_t n) {
  const std::lock_guard lock(writing_);
  for (std::size_t i = 0; i < n; ++i) {
    if (ids[i] == kFree) {
      if (!has_free_id_.exchange(true, std::memory_order_acq_rel)) size_.fetch_add(1, std::memory_order_acq_rel);
      continue;
    }
    Array* array = arrays_.back().get();
    if (size() * 3 >= (array->mask + 1) * 2) {
      auto larger = std::make_unique<Array>((array->mask + 1) * 2);
      for (std::size_t place = 0; place <= array->mask; ++place) {
        const std::int64_t id = array->ids[place].load(std::memory_order_relaxed);
        if (id != kFree) put(*larger, id);
      }
      array = larger.get();
      arrays_.push_back(std::move(larger));
      newest_.store(array, std::memory_order_release);
    }
    if (put(*array, ids[i])) size_.fetch_add(1, std::memory_order_acq_rel);
  }
}

std::size_t ChangeSet::contains(const std::int64_t* ids, std::size_t n, std::uint8_t* flags) const {
  constexpr std::size_t kAhead = 16;
  const Array& array = *newest_.load(std::memory_order_acquire);
  const bool has_free_id = has_free_id_.load(std::memory_order_acquire);
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) __builtin_prefetch(&array.ids[place_of(ids[i + kAhead], array.mask)]);
    flags[i] = ids[i] == kFree ? has_free_id : has(array, ids[i]);
    count += flags[i];
  }
  return count;
}

std::size_t ChangeSet::memory_bytes() const {
  const std::lock_guard lock(writing_);
  std::size_t places = 0;
  for (const std::unique_ptr<Array>& array : arrays_) places += array->mask + 1;
  return places * sizeof(std::int64_t);
}

std::vector<std::int64_t> ChangeSet::sorted() const {
  std::vector<std::int64_t> ids;
  const Array& array = *newest_.load(std::memory_order_acquire);
  for (std::size_t place = 0; place <= array.mask; ++place) {
    const std::int64_t id = array.ids[place].load(std::memory_order_acquire);
    if (id != kFree) ids.push_back(id);
  }
  if (has_free_id_.load(std::memory_order_acquire)) ids.push_back(kFree);
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace emberline::pages
