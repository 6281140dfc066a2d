// Batches for the tests of `assemble`: packed as a host packs them, unpacked by an obvious reference and by the
// kernel's own functions, thread by thread of a grid.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "assemble.cuh"

namespace packed {

constexpr std::int64_t kStamp = 0x0123456789ABCDEF;
constexpr std::uint8_t kUnused = 0xEE;    // between sections: nobody may read it
constexpr std::uint8_t kUnwritten = 0xA5;  // in the target: nobody may write past a tensor
constexpr std::int64_t kTensorAlign = 256;

// Exactly so many bytes at a multiple of 16, so that a sanitizer sees the first byte too many.
struct Bytes {
  explicit Bytes(std::int64_t count)
      : size(static_cast<std::size_t>(count)), data(static_cast<std::uint8_t*>(::operator new(size, kAlign))) {}
  ~Bytes() { ::operator delete(data, kAlign); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  static constexpr std::align_val_t kAlign{16};
  std::size_t size;
  std::uint8_t* data;
};

inline std::int64_t aligned(std::int64_t size, std::int64_t to) { return (size + to - 1) / to * to; }

inline std::int64_t unit_log2(std::int64_t row_bytes) {
  std::int64_t log2 = 0;
  while (log2 < 4 && row_bytes != 0 && row_bytes % (2 << log2) == 0) ++log2;
  return log2;
}

struct Input {
  std::int64_t row_bytes;
  bool is_user;
};

struct Batch {
  std::vector<Input> inputs;
  std::int64_t batch;  // rows in staging
  std::int64_t rows;   // rows of the tensors
  std::int64_t users;
};

class Packed {
 public:
  Packed(const Batch& shape, std::mt19937& random) : shape_(shape), table_(shape.inputs.size() * 4) {
    const std::int64_t inputs = static_cast<std::int64_t>(shape.inputs.size());
    std::vector<std::int64_t> header(static_cast<std::size_t>(emberline::kSectionWord + inputs));
    std::int64_t at = aligned(static_cast<std::int64_t>(header.size()) * 8, 16);
    header[0] = kStamp;
    header[1] = shape.batch;
    header[2] = shape.users;
    header[3] = at;
    if (shape.users > 0) at = aligned(at + 4 * shape.batch, 16);
    for (std::size_t i = 0; i < shape.inputs.size(); ++i) {
      header[4 + i] = at;
      at = aligned(at + section_rows(shape.inputs[i]) * shape.inputs[i].row_bytes, 16);
      table_[i * 4] = target_bytes_;
      table_[i * 4 + 1] = shape.inputs[i].row_bytes;
      table_[i * 4 + 2] = unit_log2(shape.inputs[i].row_bytes);
      table_[i * 4 + 3] = shape.inputs[i].is_user ? 1 : 0;
      target_bytes_ += aligned(shape.rows * shape.inputs[i].row_bytes, kTensorAlign);
    }
    staging_ = std::make_unique<Bytes>(at);
    std::memset(staging_->data, kUnused, staging_->size);
    std::memcpy(staging_->data, header.data(), header.size() * 8);
    for (std::int64_t row = 0; shape.users > 0 && row < shape.batch; ++row) {
      set_user(row, static_cast<int>(random() % static_cast<std::uint64_t>(shape.users)));
    }
    for (std::size_t i = 0; i < shape.inputs.size(); ++i) {
      const std::int64_t size = section_rows(shape.inputs[i]) * shape.inputs[i].row_bytes;
      // Never the byte of the gaps, nor zero, so that each mistake shows.
      for (std::int64_t k = 0; k < size; ++k) {
        staging_->data[header[4 + i] + k] = static_cast<std::uint8_t>(1 + random() % 200);
      }
    }
  }

  void set_user(std::int64_t row, int user) {
    std::memcpy(staging_->data + word(emberline::kUserOfRowWord) + 4 * row, &user, 4);
  }

  void set_word(int number, std::int64_t value) { std::memcpy(staging_->data + 8 * number, &value, 8); }

  // As one would write it without a GPU in mind.
  std::vector<std::uint8_t> reference() const {
    std::vector<std::uint8_t> target(static_cast<std::size_t>(target_bytes_), kUnwritten);
    for (std::size_t i = 0; i < shape_.inputs.size(); ++i) {
      const std::int64_t size = shape_.inputs[i].row_bytes;
      for (std::int64_t row = 0; row < shape_.rows; ++row) {
        std::uint8_t* to = target.data() + table_[i * 4] + row * size;
        if (row >= shape_.batch) {
          std::fill_n(to, size, std::uint8_t{0});
          continue;
        }
        int source = static_cast<int>(row);
        if (shape_.users > 0 && shape_.inputs[i].is_user) {
          std::memcpy(&source, staging_->data + word(emberline::kUserOfRowWord) + 4 * row, 4);
        }
        std::copy_n(staging_->data + word(emberline::kSectionWord + static_cast<int>(i)) + source * size, size, to);
      }
    }
    return target;
  }

  // The grid of the kernel: every thread of every block, in four threads of the host, so that a sanitizer sees it when
  // two write one byte.
  std::vector<std::uint8_t> assembled(std::int64_t blocks, std::int64_t block_threads, std::int64_t* stamp) const {
    Bytes target(target_bytes_);
    std::memset(target.data, kUnwritten, target.size);
    const std::int64_t inputs = static_cast<std::int64_t>(shape_.inputs.size());
    const std::int64_t step = blocks * block_threads;
    std::vector<std::thread> threads;
    for (std::int64_t part = 0; part < kHostThreads; ++part) {
      threads.emplace_back([&, part] {
        for (std::int64_t number = 0; number < std::max<std::int64_t>(inputs, 1); ++number) {
          for (std::int64_t first = part; first < step; first += kHostThreads) {
            emberline::assemble_share(staging_->data, table_.data(), inputs, target.data, stamp, shape_.rows, number,
                                      first, step);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return {target.data, target.data + target.size};
  }

 private:
  static constexpr std::int64_t kHostThreads = 4;

  std::int64_t section_rows(const Input& input) const {
    return shape_.users > 0 && input.is_user ? shape_.users : shape_.batch;
  }

  std::int64_t word(int number) const {
    std::int64_t value;
    std::memcpy(&value, staging_->data + 8 * number, 8);
    return value;
  }

  Batch shape_;
  std::vector<std::int64_t> table_;
  std::int64_t target_bytes_ = 0;
  std::unique_ptr<Bytes> staging_;
};

}  // namespace packed
