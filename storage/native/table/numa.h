// Memory of machines with more than one node. Tables are read by threads of all of them, so their pages are dealt out
// over the nodes in turn: each node's memory then carries its share of the reads, and none is the slow one. On one node
// nothing is done.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace emberline {

// Numbers of the nodes that have memory, ascending; {0} where the system does not report them.
const std::vector<int>& numa_nodes();
// "0-2,5" -> {0, 1, 2, 5}; empty for anything else.
std::vector<int> parse_nodes(const std::string& list);

// Deals the pages of a mapping out over the nodes; before they are touched. Advice: false where the kernel does not
// take it.
bool spread_pages(void* data, std::size_t bytes, const std::vector<int>& nodes);

}  // namespace emberline
