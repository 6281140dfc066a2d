// Lists of nodes, and that memory which was dealt out is memory still.
#include "check.h"
#include "table/numa.h"
#include "table/pages.h"

using namespace emberline;

TEST(lists_of_nodes_are_read_as_the_kernel_writes_them) {
  CHECK((parse_nodes("0") == std::vector<int>{0}));
  CHECK((parse_nodes("0-2,5\n") == std::vector<int>{0, 1, 2, 5}));
  CHECK((parse_nodes("1,3-3") == std::vector<int>{1, 3}));
  for (const char* wrong : {"", "x", "2-1", "0,,1", "0;1", "99999999999", "-3", "4-"})
    CHECK(parse_nodes(wrong).empty());
  CHECK(!numa_nodes().empty());
}

TEST(pages_hold_what_is_written_however_they_are_dealt_out) {
  const Pages pages(std::size_t{5} << 20);
  const bool taken = spread_pages(pages.data(), pages.bytes(), numa_nodes());
  std::printf("the kernel %s the policy\n", taken ? "took" : "did not take");
  CHECK(!spread_pages(pages.data(), pages.bytes(), {1000}));  // there is no such node
  for (std::size_t at = 0; at < pages.bytes(); at += 4096) CHECK(pages.data()[at] == 0);
  for (std::size_t at = 0; at < pages.bytes(); at += 4096) pages.data()[at] = static_cast<char>(at >> 12);
  for (std::size_t at = 0; at < pages.bytes(); at += 4096) CHECK(pages.data()[at] == static_cast<char>(at >> 12));
}

RUN_ALL_TESTS()
