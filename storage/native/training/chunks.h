// An array by slot that grows without moving: memory comes in chunks, and no growth copies what is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace emberline {

template <class T>
class Chunks {
 public:
  T& operator[](std::size_t at) { return chunks_[at >> kShift][at & kMask]; }
  const T& operator[](std::size_t at) const { return chunks_[at >> kShift][at & kMask]; }
  std::size_t size() const { return chunks_.size() << kShift; }
  // Makes room for an index; new entries are T().
  void reach(std::size_t at) {
    while (size() <= at) chunks_.push_back(std::make_unique<T[]>(kMask + 1));
  }
  template <class Visit>
  void each(Visit visit) const {  // visit(index, entry)
    for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      const T* entries = chunks_[chunk].get();
      for (std::size_t i = 0; i <= kMask; ++i) visit((chunk << kShift) + i, entries[i]);
    }
  }
  std::size_t bytes() const { return size() * sizeof(T); }

 private:
  static constexpr std::size_t kShift = 12, kMask = (std::size_t{1} << kShift) - 1;

  std::vector<std::unique_ptr<T[]>> chunks_;
};

}  // namespace emberline
