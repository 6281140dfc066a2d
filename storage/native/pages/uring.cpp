// io_uring by its system calls: one ring a queue, so that submitting takes no lock.
#include "pages/read_queue.h"

#if defined(__linux__) && __has_include(<linux/io_uring.h>)

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "pages/descriptor.h"
#include "pages/format.h"

namespace emberline::pages {
namespace {

constexpr const char* kName = "io_uring";

// A copy of the structure in the kernel's header, whose older versions lack it.
struct WaitArgument {
  std::uint64_t signal_mask = 0;
  std::uint32_t signal_mask_bytes = 0;
  std::uint32_t unused = 0;
  std::uint64_t timeout = 0;  // address of a Timeout
};
struct Timeout {
  std::int64_t seconds;
  long long nanoseconds;
};
constexpr unsigned kEnterExtendedArgument = 1u << 3;
constexpr unsigned kFeatureSingleMap = 1u << 0;
constexpr unsigned kFeatureExtendedArgument = 1u << 8;

class Mapping {
 public:
  Mapping(int fd, std::size_t bytes, std::uint64_t offset) : bytes_(bytes) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(offset));
    if (data_ == MAP_FAILED) throw DiskError(errno, "mapping", kName);
  }
  ~Mapping() { ::munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(data_) + offset);
  }

 private:
  void* data_;
  std::size_t bytes_;
};

// An index that the kernel reads or writes at the same time.
unsigned load_acquire(const unsigned* place) { return __atomic_load_n(place, __ATOMIC_ACQUIRE); }
void store_release(unsigned* place, unsigned value) { __atomic_store_n(place, value, __ATOMIC_RELEASE); }

class Uring final : public ReadQueue {
 public:
  explicit Uring(std::size_t depth) {
    ring_ = Descriptor(static_cast<int>(::syscall(__NR_io_uring_setup, static_cast<unsigned>(depth), &parameters_)));
    if (!ring_.open()) throw DiskError(errno, "setting up", kName);
    if ((parameters_.features & kFeatureSingleMap) == 0 || (parameters_.features & kFeatureExtendedArgument) == 0) {
      throw DiskError(ENOSYS, "setting up (the kernel is older than 5.11)", kName);
    }
    const auto& sq = parameters_.sq_off;
    const auto& cq = parameters_.cq_off;
    const std::size_t bytes = std::max(sq.array + parameters_.sq_entries * sizeof(unsigned),
                                       cq.cqes + parameters_.cq_entries * sizeof(io_uring_cqe));
    rings_ = std::make_unique<Mapping>(ring_.get(), bytes, IORING_OFF_SQ_RING);
    entries_ = std::make_unique<Mapping>(ring_.get(), parameters_.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
    sq_tail_ = rings_->at<unsigned>(sq.tail);
    sq_mask_ = *rings_->at<unsigned>(sq.ring_mask);
    cq_head_ = rings_->at<unsigned>(cq.head);
    cq_tail_ = rings_->at<unsigned>(cq.tail);
    cq_mask_ = *rings_->at<unsigned>(cq.ring_mask);
    // Entry i always stands at place i.
    for (unsigned i = 0; i < parameters_.sq_entries; ++i) rings_->at<unsigned>(sq.array)[i] = i;
  }

  void push(ReadOp& op) override {
    const unsigned tail = *sq_tail_;  // only this side writes it
    io_uring_sqe& entry = entries_->at<io_uring_sqe>(0)[tail & sq_mask_];
    std::memset(&entry, 0, sizeof entry);
    entry.opcode = IORING_OP_READ;
    entry.fd = op.fd;
    entry.off = op.offset;
    entry.addr = reinterpret_cast<std::uint64_t>(op.buffer);
    entry.len = op.bytes;
    entry.user_data = reinterpret_cast<std::uint64_t>(&op);
    store_release(sq_tail_, tail + 1);
    ++pushed_;
  }

  void turn(std::size_t least, Deadline deadline, std::vector<ReadOp*>& ended) override {
    const std::size_t before = ended.size();
    reap(ended);
    while (pushed_ > 0 || ended.size() - before < least) {
      const std::size_t have = ended.size() - before;
      const bool waits = have < least;
      Timeout left{0, 0};
      if (deadline) {
        const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(*deadline - Clock::now()).count();
        if (ns <= 0 && pushed_ == 0) return;
        left = {std::max<std::int64_t>(ns, 0) / 1'000'000'000, std::max<std::int64_t>(ns, 0) % 1'000'000'000};
      }
      WaitArgument argument;
      argument.timeout = deadline ? reinterpret_cast<std::uint64_t>(&left) : 0;
      const long done = ::syscall(__NR_io_uring_enter, ring_.get(), pushed_, waits ? least - have : 0,
                                  waits ? IORING_ENTER_GETEVENTS | kEnterExtendedArgument : 0,
                                  waits ? &argument : nullptr, waits ? sizeof argument : 0);
      if (done > 0) {
        pushed_ -= static_cast<unsigned>(done);
      } else if (done < 0 && errno != EINTR && errno != ETIME && errno != EAGAIN && errno != EBUSY) {
        throw DiskError(errno, "submitting reads to", kName);
      }
      reap(ended);
    }
  }

 private:
  void reap(std::vector<ReadOp*>& ended) {
    unsigned head = *cq_head_;  // only this side writes it
    const unsigned tail = load_acquire(cq_tail_);
    const io_uring_cqe* const completions = rings_->at<io_uring_cqe>(parameters_.cq_off.cqes);
    for (; head != tail; ++head) {
      const io_uring_cqe& completion = completions[head & cq_mask_];
      auto* const op = reinterpret_cast<ReadOp*>(completion.user_data);
      op->result = completion.res;
      ended.push_back(op);
    }
    store_release(cq_head_, head);
  }

  io_uring_params parameters_{};
  Descriptor ring_;
  std::unique_ptr<Mapping> rings_;
  std::unique_ptr<Mapping> entries_;
  unsigned* sq_tail_ = nullptr;
  unsigned sq_mask_ = 0;
  unsigned* cq_head_ = nullptr;
  unsigned* cq_tail_ = nullptr;
  unsigned cq_mask_ = 0;
  unsigned pushed_ = 0;
};

class UringQueues final : public ReadQueues {
 public:
  explicit UringQueues(std::size_t depth) : depth_(depth) {}
  std::unique_ptr<ReadQueue> make() override { return std::make_unique<Uring>(depth_); }
  const char* name() const override { return "uring"; }

 private:
  std::size_t depth_;
};

}  // namespace

std::unique_ptr<ReadQueues> uring_queues(std::size_t depth) {
  try {
    const Uring probe(depth);
  } catch (const DiskError&) {
    return nullptr;
  }
  return std::make_unique<UringQueues>(depth);
}

}  // namespace emberline::pages

#else

namespace emberline::pages {
std::unique_ptr<ReadQueues> uring_queues(std::size_t) { return nullptr; }
}  // namespace emberline::pages

#endif
