// Rows that came in the set that is being collected, and the slots that they are for.
//
// A number is a row's place here. Which number a slot has is asked for seldom: the table of them is made for the first
// that asks about another row than the last.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "table/id_map.h"

namespace emberline {

class StagedRows {
 public:
  explicit StagedRows(std::size_t row_bytes) : row_bytes_(row_bytes), stride_(row_bytes) {}

  std::uint32_t size() const { return static_cast<std::uint32_t>(slots_.size()); }
  std::uint32_t slot(std::uint32_t number) const { return slots_[number]; }
  std::uint8_t* row(std::uint32_t number) const { return data() + std::size_t{number} * stride_; }
  std::size_t memory_bytes() const {
    return own_.capacity() + slots_.capacity() * sizeof(slots_[0]) + numbers_.bytes();
  }

  void append(std::uint32_t slot, const std::uint8_t* row) {
    keep();
    own_.insert(own_.end(), row, row + row_bytes_);
    slots_.push_back(slot);
    if (numbered_) numbers_[slot] = size() - 1;
  }

  // All rows of a set that has none yet, where they lie, `stride` bytes apart: they may be moved there. Gives their
  // slots, to be written.
  std::uint32_t* lend(std::uint8_t* rows, std::size_t stride, std::uint32_t n, std::shared_ptr<void> owner) {
    lent_ = rows;
    stride_ = stride;
    owner_ = std::move(owner);
    numbers_.clear();
    numbered_ = false;
    slots_.resize(n);
    return slots_.data();
  }

  std::uint32_t number_of(std::uint32_t slot) {
    if (slots_.back() == slot) return size() - 1;
    if (!numbered_) {
      for (std::uint32_t number = 0; number < size(); ++number) numbers_[slots_[number]] = number;
      numbered_ = true;
    }
    return numbers_[slot];
  }

  // The last row takes its number.
  void remove(std::uint32_t slot) {
    const std::uint32_t number = number_of(slot), last = slots_.back();
    if (last != slot) {
      std::copy_n(row(size() - 1), row_bytes_, row(number));
      slots_[number] = last;
      numbers_[last] = number;
    }
    if (numbered_) numbers_.erase(slot);
    slots_.pop_back();
    if (lent_ == nullptr) own_.resize(own_.size() - row_bytes_);
  }

  // Slow.
  bool is_sound() const {
    if (lent_ == nullptr && own_.size() != slots_.size() * row_bytes_) return false;
    for (std::uint32_t number = 0; numbered_ && number < size(); ++number) {
      const std::uint32_t* known = numbers_.find(slots_[number]);
      if (known == nullptr || *known != number) return false;
    }
    return true;
  }

  // Moves everything to the set; nothing is left here afterwards, nor is memory held.
  struct Rows {
    std::vector<std::uint32_t> slots;
    std::vector<std::uint8_t> own;
    std::uint8_t* lent;
    std::size_t stride;
    std::shared_ptr<void> owner;
  };
  Rows take() {
    Rows rows{std::move(slots_), std::move(own_), lent_, stride_, std::move(owner_)};
    *this = StagedRows(row_bytes_);
    return rows;
  }

 private:
  std::uint8_t* data() const { return lent_ != nullptr ? lent_ : const_cast<std::uint8_t*>(own_.data()); }

  void keep() {
    if (lent_ == nullptr) return;
    own_.resize(slots_.size() * row_bytes_);
    for (std::uint32_t number = 0; number < size(); ++number) {
      std::copy_n(row(number), row_bytes_, own_.data() + number * row_bytes_);
    }
    lent_ = nullptr;
    stride_ = row_bytes_;
    owner_.reset();
  }

  std::size_t row_bytes_, stride_;
  std::vector<std::uint8_t> own_;
  std::uint8_t* lent_ = nullptr;
  std::shared_ptr<void> owner_;
  std::vector<std::uint32_t> slots_;
  IdMap numbers_;
  bool numbered_ = false;
};

}  // namespace emberline
