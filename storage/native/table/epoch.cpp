#include "table/epoch.h"

#include <thread>

namespace emberline {
namespace {

std::atomic<std::uint64_t> global_epoch{1};
std::atomic<ReaderNode*> all_nodes{nullptr};

ReaderNode* claim_node() {
  for (ReaderNode* node = all_nodes.load(std::memory_order_acquire); node != nullptr; node = node->next) {
    bool taken = false;
    if (node->taken.compare_exchange_strong(taken, true)) return node;
  }
  auto* node = new ReaderNode;
  node->taken.store(true);
  node->next = all_nodes.load();
  while (!all_nodes.compare_exchange_weak(node->next, node)) {
  }
  return node;
}

struct ThreadNode {
  ReaderNode* node = claim_node();
  ~ThreadNode() { node->taken.store(false); }
};

// Returns the oldest epoch that a reader has announced; the current one when there is no reader.
std::uint64_t oldest_epoch() {
  std::uint64_t oldest = global_epoch.load();
  for (ReaderNode* node = all_nodes.load(); node != nullptr; node = node->next) {
    const std::uint64_t epoch = node->epoch.load();
    if (epoch != 0 && epoch < oldest) oldest = epoch;
  }
  return oldest;
}

}  // namespace

ReaderSection::ReaderSection() {
  thread_local ThreadNode own;
  node_ = own.node;
  std::uint64_t epoch = global_epoch.load();
  for (;;) {
    node_->epoch.store(epoch);
    // An advance between the load and the store would leave this reader unseen in the epoch it announces.
    const std::uint64_t now = global_epoch.load();
    if (now == epoch) return;
    epoch = now;
  }
}

ReaderSection::~ReaderSection() { node_->epoch.store(0, std::memory_order_release); }

void Grace::seal() { sealed_.emplace_back(group_++, global_epoch.fetch_add(1)); }

void Grace::look() {
  const std::uint64_t oldest = oldest_epoch();
  while (!sealed_.empty() && sealed_.front().second < oldest) {
    passed_ = sealed_.front().first;
    sealed_.pop_front();
  }
}

void Grace::poll() {
  seal();
  look();
}

void Grace::wait(std::uint64_t group) {
  if (group >= group_) seal();
  for (look(); !passed(group); look()) std::this_thread::yield();
}

}  // namespace emberline
