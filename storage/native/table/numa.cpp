#include "table/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <fstream>

namespace emberline {
namespace {

constexpr int kMostNodes = 1024;
constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of <linux/mempolicy.h>

}  // namespace

std::vector<int> parse_nodes(const std::string& list) {
  std::vector<int> nodes;
  std::size_t at = 0;
  const auto number = [&] {
    int value = -1;
    for (; at < list.size() && list[at] >= '0' && list[at] <= '9' && value < kMostNodes; ++at) {
      value = (value < 0 ? 0 : value * 10) + (list[at] - '0');
    }
    return value;
  };
  while (at < list.size() && list[at] != '\n') {
    const int first = number();
    int last = first;
    if (at < list.size() && list[at] == '-') {
      ++at;
      last = number();
    }
    if (first < 0 || last < first || last >= kMostNodes) return {};
    for (int node = first; node <= last; ++node) nodes.push_back(node);
    if (at < list.size() && list[at] == ',') {
      ++at;
    } else if (at < list.size() && list[at] != '\n') {
      return {};
    }
  }
  return nodes;
}

const std::vector<int>& numa_nodes() {
  static const std::vector<int> nodes = [] {
    std::string line;
    std::ifstream file("/sys/devices/system/node/has_memory");
    std::getline(file, line);
    std::vector<int> found = parse_nodes(line);
    return found.empty() ? std::vector<int>{0} : found;
  }();
  return nodes;
}

bool spread_pages(void* data, std::size_t bytes, const std::vector<int>& nodes) {
#if defined(SYS_mbind)
  constexpr int kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMostNodes / kBits> mask{};
  for (const int node : nodes) mask[static_cast<std::size_t>(node / kBits)] |= 1ul << (node % kBits);
  return syscall(SYS_mbind, data, bytes, kInterleave, mask.data(), static_cast<unsigned long>(kMostNodes), 0u) == 0;
#else
  return false;
#endif
}

}  // namespace emberline
