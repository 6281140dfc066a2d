// Deadlines and shared reads, on a disk that answers when the test lets it.
#include <unistd.h>
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "check.h"
#include "pages/reader.h"
#include "planted.h"

using namespace planted;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kRowBytes = 128;

// Reads end one by one, as the test allows.
class Gate {
 public:
  void allow(std::size_t reads) {
    const std::lock_guard lock(mutex_);
    allowed_ += reads;
    changed_.notify_all();
  }
  void fail_all() { fails_ = true; }

  void submit(std::size_t reads) {
    const std::lock_guard lock(mutex_);
    submitted_ += reads;
    changed_.notify_all();
  }
  void await_submitted(std::size_t reads) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return submitted_ >= reads; });
  }
  // Whether one more read may end.
  bool pass(Deadline deadline) {
    std::unique_lock lock(mutex_);
    const auto may = [&] { return allowed_ > 0; };
    if (deadline ? !changed_.wait_until(lock, *deadline, may) : (changed_.wait(lock, may), false)) return false;
    --allowed_;
    return true;
  }
  bool fails() const { return fails_; }
  std::size_t submitted() {
    const std::lock_guard lock(mutex_);
    return submitted_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t allowed_ = 0, submitted_ = 0;
  std::atomic<bool> fails_{false};
};

class SlowQueue final : public ReadQueue {
 public:
  explicit SlowQueue(Gate& gate) : gate_(gate) {}
  void push(ReadOp& op) override { waiting_.push_back(&op), ++fresh_; }
  void turn(std::size_t least, Deadline deadline, std::vector<ReadOp*>& ended) override {
    gate_.submit(std::exchange(fresh_, 0));
    for (std::size_t done = 0; done < least && !waiting_.empty(); ++done) {
      if (!gate_.pass(deadline)) return;
      ReadOp* const op = waiting_.front();
      waiting_.erase(waiting_.begin());
      op->result =
          gate_.fails()
              ? -EIO
              : static_cast<std::int32_t>(::pread(op->fd, op->buffer, op->bytes, static_cast<off_t>(op->offset)));
      ended.push_back(op);
    }
  }

 private:
  Gate& gate_;
  std::vector<ReadOp*> waiting_;
  std::size_t fresh_ = 0;
};

class SlowQueues final : public ReadQueues {
 public:
  explicit SlowQueues(Gate& gate) : gate_(gate) {}
  std::unique_ptr<ReadQueue> make() override { return std::make_unique<SlowQueue>(gate_); }
  const char* name() const override { return "slow"; }

 private:
  Gate& gate_;
};

struct World {
  Folder folder;
  std::vector<std::int64_t> ids = some_ids(300, 1);  // ten pages of thirty rows
  std::shared_ptr<const PageFile> file = write_file(folder.file("f"), ids, kRowBytes);
  Gate gate;
  PageReader reader{{"auto", 4, 3, 1}, std::make_unique<SlowQueues>(gate)};

  void await_coalesced(std::uint64_t reads) const {
    while (reader.stats().coalesced < reads) std::this_thread::yield();
  }
};

struct Answer {
  std::vector<char> rows;
  std::vector<std::uint8_t> states;
  Answer(World& world, const std::vector<std::int64_t>& ids, Deadline deadline = std::nullopt)
      : rows(ids.size() * kRowBytes), states(ids.size(), 9) {
    world.reader.read({{world.file, ids.data(), ids.size(), rows.data(), states.data()}}, deadline);
  }
};

}  // namespace

TEST(what_does_not_come_in_time_is_unresolved_and_never_written_later) {
  World world;
  world.gate.allow(2);
  Answer answer(world, world.ids, Clock::now() + 50ms);
  // Of four pages under way two came, each with thirty rows.
  CHECK(std::count(answer.states.begin(), answer.states.end(), kFound) == 60);
  CHECK(std::count(answer.states.begin(), answer.states.end(), kUnresolved) == 240);
  CHECK(world.reader.stats().unresolved == 240);
  const std::vector<char> rows = answer.rows;
  const std::vector<std::uint8_t> states = answer.states;
  world.gate.allow(1000);
  const Answer again(world, world.ids);
  CHECK(answer.rows == rows && answer.states == states);
  for (std::size_t i = 0; i < world.ids.size(); ++i) {
    CHECK(again.states[i] == kFound && is_row_of(again.rows.data() + i * kRowBytes, world.ids[i], kRowBytes));
    const bool found = states[i] == kFound;
    CHECK(found ? is_row_of(rows.data() + i * kRowBytes, world.ids[i], kRowBytes) : rows[i * kRowBytes] == 0);
  }
}

TEST(no_time_at_all_begins_no_read_but_absent_ids_are_known) {
  World world;
  const Answer answer(world, {world.ids[0], 12345}, Clock::now());
  CHECK(answer.states == (std::vector<std::uint8_t>{kUnresolved, kAbsent}));
  CHECK(world.gate.submitted() == 0);
}

TEST(calls_that_need_one_page_share_its_read) {
  World world;
  const std::vector<std::int64_t> ids(world.ids.begin(), world.ids.begin() + 30);  // one page
  std::vector<std::future<bool>> calls;
  for (int call = 0; call < 3; ++call) {
    calls.push_back(std::async(std::launch::async, [&] {
      const Answer answer(world, ids);
      bool good = true;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        good = good && answer.states[i] == kFound && is_row_of(answer.rows.data() + i * kRowBytes, ids[i], kRowBytes);
      }
      return good;
    }));
    if (call == 0) world.gate.await_submitted(1);
  }
  world.await_coalesced(2);
  world.gate.allow(1);
  for (std::future<bool>& call : calls) CHECK(call.get());
  CHECK(world.gate.submitted() == 1 && world.reader.stats().pages == 1);
}

TEST(who_shares_a_read_gets_it_when_its_owner_has_given_up) {
  World world;
  const std::vector<std::int64_t> ids(world.ids.begin(), world.ids.begin() + 30);
  std::future<void> owner = std::async(std::launch::async, [&] {
    const Answer answer(world, ids, Clock::now() + 500ms);
    CHECK(answer.states == std::vector<std::uint8_t>(30, kUnresolved));
  });
  world.gate.await_submitted(1);
  std::future<bool> sharer = std::async(
      std::launch::async, [&] { return Answer(world, ids).states == std::vector<std::uint8_t>(30, kFound); });
  world.await_coalesced(1);
  owner.get();
  world.gate.allow(1);
  CHECK(sharer.get());
}

TEST(who_shares_a_read_may_give_up_too) {
  World world;
  const std::vector<std::int64_t> ids(world.ids.begin(), world.ids.begin() + 30);
  std::future<bool> owner = std::async(
      std::launch::async, [&] { return Answer(world, ids).states == std::vector<std::uint8_t>(30, kFound); });
  world.gate.await_submitted(1);
  const Answer answer(world, ids, Clock::now() + 30ms);
  CHECK(answer.states == std::vector<std::uint8_t>(30, kUnresolved));
  CHECK(world.gate.submitted() == 1);
  world.gate.allow(1);
  CHECK(owner.get());
}

TEST(a_read_that_fails_fails_for_all_who_share_it) {
  World world;
  world.gate.fail_all();
  const std::vector<std::int64_t> ids(world.ids.begin(), world.ids.begin() + 30);
  std::vector<std::future<void>> calls;
  for (int call = 0; call < 3; ++call) {
    calls.push_back(std::async(std::launch::async, [&] { Answer(world, ids); }));
    if (call == 0) world.gate.await_submitted(1);
  }
  world.await_coalesced(2);
  world.gate.allow(1);
  for (std::future<void>& call : calls) CHECK_THROWS(call.get(), DiskError);
}

TEST(page_queues_that_were_given_up_come_back_and_calls_wait_for_one_until_their_deadline) {
  World world;
  std::vector<std::future<void>> calls;
  for (int call = 0; call < 3; ++call) {  // all page queues
    calls.push_back(std::async(std::launch::async, [&, call] {
      Answer(world, {world.ids[static_cast<std::size_t>(call) * 30]}, Clock::now() + 80ms);
    }));
  }
  for (std::future<void>& call : calls) call.get();
  const Answer none(world, {world.ids[200]}, Clock::now() + 10ms);
  CHECK(none.states[0] == kUnresolved);
  CHECK(world.gate.submitted() == 3);
  world.gate.allow(1000);
  CHECK(Answer(world, {world.ids[200]}).states[0] == kFound);
}

TEST(close_waits_for_reads_that_were_given_up) {
  World world;
  const Answer late(world, world.ids,
                    Clock::now() + 5ms);  // its page queue has reads under way, and goes to the janitor
  std::atomic<bool> closed{false};
  std::thread closer([&] {
    world.reader.close();
    closed = true;
  });
  std::this_thread::sleep_for(20ms);
  CHECK(!closed);
  world.gate.allow(1000);
  closer.join();
  CHECK_THROWS(Answer(world, world.ids), DiskError);
}

RUN_ALL_TESTS()
