#include "limits/disk.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

namespace emberline::limits {
namespace {

constexpr unsigned kMaxDepth = 1024;
constexpr std::size_t kAlignment = 4096;

[[noreturn]] void fail(int code, const std::string& doing) {
  throw std::system_error(code, std::generic_category(), doing);
}

class File {
 public:
  explicit File(const std::string& path) : descriptor_(open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)) {
    if (descriptor_ < 0) fail(errno, "opening " + path + " for direct reads");
  }
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor() const { return descriptor_; }
  std::size_t bytes() const {
    struct stat status{};
    if (fstat(descriptor_, &status) != 0) fail(errno, "fstat");
    return static_cast<std::size_t>(status.st_size);
  }

 private:
  int descriptor_;
};

struct Free {
  void operator()(void* pointer) const { std::free(pointer); }
};
using Buffer = std::unique_ptr<char, Free>;

Buffer buffer_of(std::size_t bytes) {
  void* pointer = nullptr;
  if (posix_memalign(&pointer, kAlignment, bytes) != 0) throw std::bad_alloc();
  return Buffer(static_cast<char*>(pointer));
}

// The offset of the i-th read: the same whatever the engine, so that both read the same blocks.
std::uint64_t offset_of(std::uint64_t seed, std::uint64_t i, std::uint64_t blocks, std::size_t block_bytes) {
  std::uint64_t value = seed + (i + 1) * 0x9E3779B97F4A7C15ull;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return (value ^ (value >> 31)) % blocks * block_bytes;
}

class Map {
 public:
  Map(std::size_t bytes, int descriptor, std::uint64_t offset)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor,
                   static_cast<off_t>(offset))) {
    if (data_ == MAP_FAILED) fail(errno, "mapping the rings of io_uring");
  }
  ~Map() { munmap(data_, bytes_); }
  Map(const Map&) = delete;
  Map& operator=(const Map&) = delete;
  template <class T>
  T* at(std::uint32_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(data_) + offset);
  }

 private:
  std::size_t bytes_;
  void* data_;
};

int setup_ring(unsigned entries, io_uring_params& params) {
  return static_cast<int>(syscall(__NR_io_uring_setup, entries, &params));
}

// The kernel's two rings by their raw calls. One thread.
class Ring {
 public:
  explicit Ring(unsigned entries) {
    descriptor_ = setup_ring(entries, params_);
    if (descriptor_ < 0) fail(errno, "io_uring_setup");
    try {
      map_rings();
    } catch (...) {
      close(descriptor_);
      throw;
    }
  }
  ~Ring() {
    submissions_.reset();
    completions_.reset();
    entries_.reset();
    close(descriptor_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void read(int file, char* buffer, std::size_t bytes, std::uint64_t offset, std::uint64_t tag) {
    const std::uint32_t tail = *submit_tail_;
    const std::uint32_t index = tail & submit_mask_;
    io_uring_sqe& entry = entries_->at<io_uring_sqe>(0)[index];
    std::memset(&entry, 0, sizeof(entry));
    entry.opcode = IORING_OP_READ;
    entry.fd = file;
    entry.addr = reinterpret_cast<std::uint64_t>(buffer);
    entry.len = static_cast<std::uint32_t>(bytes);
    entry.off = offset;
    entry.user_data = tag;
    submit_array_[index] = index;
    __atomic_store_n(submit_tail_, tail + 1, __ATOMIC_RELEASE);
    ++waiting_;
  }

  // Hands over what was prepared and waits for one result at least.
  void enter() {
    while (true) {
      const long done = syscall(__NR_io_uring_enter, descriptor_, waiting_, 1u, IORING_ENTER_GETEVENTS, nullptr, 0);
      if (done >= 0) {
        waiting_ -= static_cast<unsigned>(done);
        return;
      }
      if (errno != EINTR) fail(errno, "io_uring_enter");
    }
  }

  // The next result, if there is one: its tag and its bytes, or the negative of an error.
  bool take(std::uint64_t& tag, std::int32_t& result) {
    const std::uint32_t head = *complete_head_;
    if (head == __atomic_load_n(complete_tail_, __ATOMIC_ACQUIRE)) return false;
    const io_uring_cqe& entry = complete_entries_[head & complete_mask_];
    tag = entry.user_data;
    result = entry.res;
    __atomic_store_n(complete_head_, head + 1, __ATOMIC_RELEASE);
    return true;
  }

 private:
  void map_rings() {
    const io_sqring_offsets& sq = params_.sq_off;
    const io_cqring_offsets& cq = params_.cq_off;
    submissions_ =
        std::make_unique<Map>(sq.array + params_.sq_entries * sizeof(std::uint32_t), descriptor_, IORING_OFF_SQ_RING);
    completions_ =
        std::make_unique<Map>(cq.cqes + params_.cq_entries * sizeof(io_uring_cqe), descriptor_, IORING_OFF_CQ_RING);
    entries_ = std::make_unique<Map>(params_.sq_entries * sizeof(io_uring_sqe), descriptor_, IORING_OFF_SQES);
    submit_tail_ = submissions_->at<std::uint32_t>(sq.tail);
    submit_mask_ = *submissions_->at<std::uint32_t>(sq.ring_mask);
    submit_array_ = submissions_->at<std::uint32_t>(sq.array);
    complete_head_ = completions_->at<std::uint32_t>(cq.head);
    complete_tail_ = completions_->at<std::uint32_t>(cq.tail);
    complete_mask_ = *completions_->at<std::uint32_t>(cq.ring_mask);
    complete_entries_ = completions_->at<io_uring_cqe>(cq.cqes);
  }

  io_uring_params params_{};
  int descriptor_ = -1;
  unsigned waiting_ = 0;
  std::unique_ptr<Map> submissions_, completions_, entries_;
  std::uint32_t* submit_tail_ = nullptr;
  std::uint32_t submit_mask_ = 0;
  std::uint32_t* submit_array_ = nullptr;
  std::uint32_t* complete_head_ = nullptr;
  std::uint32_t* complete_tail_ = nullptr;
  std::uint32_t complete_mask_ = 0;
  io_uring_cqe* complete_entries_ = nullptr;
};

struct Work {
  const File& file;
  std::size_t block_bytes;
  unsigned depth;
  std::size_t count;
  std::uint64_t seed;
  std::uint64_t blocks;

  std::uint64_t offset(std::size_t i) const { return offset_of(seed, i, blocks, block_bytes); }
};

void by_ring(const Work& work) {
  // The buffers outlive the ring: a read that is still under way when an error ends this writes into them.
  const Buffer buffer = buffer_of(work.depth * work.block_bytes);
  Ring ring(work.depth);
  std::size_t begun = 0;
  std::size_t ended = 0;
  const auto begin = [&](std::uint64_t page_queue) {
    ring.read(work.file.descriptor(), buffer.get() + page_queue * work.block_bytes, work.block_bytes,
              work.offset(begun++), page_queue);
  };
  int error = 0;
  while (begun < std::min<std::size_t>(work.depth, work.count)) begin(begun);
  while (ended < begun) {
    ring.enter();
    std::uint64_t page_queue = 0;
    std::int32_t result = 0;
    while (ring.take(page_queue, result)) {
      ++ended;
      if (result != static_cast<std::int32_t>(work.block_bytes) && error == 0) error = result < 0 ? -result : EIO;
      if (begun < work.count && error == 0) begin(page_queue);
    }
  }
  if (error != 0) fail(error, "a direct read of " + std::to_string(work.block_bytes) + " bytes");
}

void by_threads(const Work& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<int> error{0};
  std::vector<std::thread> threads;
  const auto run = [&] {
    try {
      const Buffer buffer = buffer_of(work.block_bytes);
      for (std::size_t i = next.fetch_add(1); i < work.count && error.load() == 0; i = next.fetch_add(1)) {
        const ssize_t got =
            pread(work.file.descriptor(), buffer.get(), work.block_bytes, static_cast<off_t>(work.offset(i)));
        if (got != static_cast<ssize_t>(work.block_bytes)) error.store(got < 0 ? errno : EIO);
      }
    } catch (const std::bad_alloc&) {
      error.store(ENOMEM);
    }
  };
  try {
    for (unsigned t = 0; t < work.depth; ++t) threads.emplace_back(run);
  } catch (const std::system_error& failed) {
    error.store(failed.code().value());
  }
  for (std::thread& thread : threads) thread.join();
  if (error.load() != 0) fail(error.load(), "a direct read of " + std::to_string(work.block_bytes) + " bytes");
}

}  // namespace

bool has_io_uring() {
  io_uring_params params{};
  const int descriptor = setup_ring(1, params);
  if (descriptor < 0) return false;
  close(descriptor);
  return true;
}

RandomReads random_reads(const std::string& path, std::size_t block_bytes, unsigned depth, std::size_t count,
                         std::uint64_t seed, const std::string& engine) {
  if (block_bytes == 0 || block_bytes % kAlignment != 0 || block_bytes > (std::size_t{1} << 24)) {
    throw std::invalid_argument("block_bytes: expected a multiple of 4096, at most 16 MiB");
  }
  if (depth == 0 || depth > kMaxDepth) throw std::invalid_argument("depth: expected 1 to 1024");
  if (!engine.empty() && engine != "io_uring" && engine != "threads") {
    throw std::invalid_argument("engine: expected io_uring, threads or nothing, got " + engine);
  }
  const File file(path);
  const std::uint64_t blocks = file.bytes() / block_bytes;
  if (blocks == 0) throw std::invalid_argument("path: " + path + " is shorter than one block");
  const Work work{file, block_bytes, depth, count, seed, blocks};
  const bool ring = engine == "io_uring" || (engine.empty() && has_io_uring());
  const auto start = std::chrono::steady_clock::now();
  if (ring) {
    by_ring(work);
  } else {
    by_threads(work);
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return {static_cast<double>(count) / std::max(1e-9, taken.count()), ring ? "io_uring" : "threads"};
}

}  // namespace emberline::limits
