// Both engines of the random-read probe against a small file.
#include "check.h"
#include "limits/disk.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>

#include <unistd.h>

using namespace emberline::limits;

namespace {

// Lies beside the test, not in /tmp: a file system in memory has no direct reads.
struct SmallFile {
  std::string path = "disk_limits_" + std::to_string(getpid()) + ".bin";
  explicit SmallFile(std::size_t bytes) { std::ofstream(path) << std::string(bytes, 'x'); }
  ~SmallFile() { std::remove(path.c_str()); }
};

}  // namespace

TEST(both_engines_read) {
  const SmallFile file(64 * 4096);
  for (const std::string engine : {"threads", "io_uring"}) {
    if (engine == "io_uring" && !has_io_uring()) {
      std::printf("io_uring is not allowed here: not tested\n");
      continue;
    }
    for (const unsigned depth : {1u, 7u, 32u}) {
      const RandomReads reads = random_reads(file.path, 4096, depth, 300, depth, engine);
      CHECK(reads.per_second > 0.0);
      CHECK(reads.engine == engine);
    }
  }
  CHECK(random_reads(file.path, 16384, 4, 0, 0).per_second == 0.0);
  CHECK(random_reads(file.path, 4096, 32, 5, 0).per_second > 0.0);  // fewer reads than may be under way
}

TEST(bad_arguments_and_files_are_refused) {
  const SmallFile file(8192);
  const SmallFile& kept = file;
  CHECK_THROWS(random_reads(kept.path, 1000, 1, 1, 0), std::invalid_argument);
  CHECK_THROWS(random_reads(kept.path, 4096, 0, 1, 0), std::invalid_argument);
  CHECK_THROWS(random_reads(kept.path, 16384, 1, 1, 0), std::invalid_argument);
  CHECK_THROWS(random_reads(kept.path, 4096, 1, 1, 0, "magic"), std::invalid_argument);
  CHECK_THROWS(random_reads("no/such/file", 4096, 1, 1, 0), std::system_error);
}

RUN_ALL_TESTS()
