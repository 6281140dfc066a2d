// Memory that is taken piece by piece and given back as a whole.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <vector>

namespace emberline::features {

// Not thread-safe. Pieces are uninitialised, and their addresses never move.
class Arena {
 public:
  // first_bytes: size of the first chunk, which is allocated with the first piece.
  explicit Arena(std::size_t first_bytes = 0) : next_bytes_(first_bytes) {}
  Arena(Arena&&) noexcept = default;
  Arena& operator=(Arena&&) noexcept = default;

  // Room for `count` values; never null, even for none.
  template <class T>
  T* take(std::int64_t count) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= kAlignment);
    if (count < 0 || static_cast<std::uint64_t>(count) > kMostBytes / sizeof(T)) throw std::bad_array_new_length();
    const std::size_t bytes = aligned(static_cast<std::size_t>(count) * sizeof(T));
    if (bytes > left_) grow(bytes);
    std::byte* piece = at_;
    at_ += bytes;
    left_ -= bytes;
    return reinterpret_cast<T*>(piece);
  }

  template <class T>
  T* take_filled(std::int64_t count, T value) {
    T* piece = take<T>(count);
    std::fill_n(piece, count, value);
    return piece;
  }

  // Gives all pieces back. Memory of at most `most_bytes` stays for the next ones, in one chunk.
  void reset(std::size_t most_bytes) {
    std::size_t total = 0;
    for (const Chunk& chunk : chunks_) total += chunk.bytes;
    if (chunks_.size() != 1 || total > most_bytes) {
      chunks_.clear();
      next_bytes_ = std::min(total, most_bytes);
      left_ = 0;
      return;
    }
    at_ = chunks_[0].memory.get();
    left_ = total;
  }

  // The memory that the pieces lie in.
  std::size_t chunk_count() const { return chunks_.size(); }
  std::span<std::byte> chunk(std::size_t number) const { return {chunks_[number].memory.get(), chunks_[number].bytes}; }

 private:
  static constexpr std::size_t kAlignment = 16;
  static constexpr std::size_t kMostBytes = std::size_t{1} << 62;

  struct Chunk {
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes;
  };

  static std::size_t aligned(std::size_t bytes) {
    return std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  }

  void grow(std::size_t bytes) {
    const std::size_t size = std::max({bytes, aligned(next_bytes_), kLeastBytes});
    chunks_.push_back({std::unique_ptr<std::byte[]>(new std::byte[size]), size});
    at_ = chunks_.back().memory.get();
    left_ = size;
    next_bytes_ = size;
  }

  static constexpr std::size_t kLeastBytes = 1024;

  std::vector<Chunk> chunks_;
  std::size_t next_bytes_;
  std::byte* at_ = nullptr;
  std::size_t left_ = 0;
};

}  // namespace emberline::features
