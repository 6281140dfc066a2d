// Rows that say themselves whose they are, and files of them in a folder that goes with the test.
#pragma once

#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "pages/file.h"
#include "pages/writer.h"

namespace planted {

using namespace emberline::pages;

class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "pages-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Byte i of the row of an id, in a generation.
inline char byte_of(std::int64_t id, std::size_t i, int generation = 0) {
  return static_cast<char>((static_cast<std::uint64_t>(id) + generation) * 0x9E3779B97F4A7C15u >> (i % 8 * 7));
}

inline std::vector<char> rows_of(const std::vector<std::int64_t>& ids, std::size_t row_bytes, int generation = 0) {
  std::vector<char> rows(ids.size() * row_bytes);
  for (std::size_t r = 0; r < ids.size(); ++r) {
    for (std::size_t i = 0; i < row_bytes; ++i) rows[r * row_bytes + i] = byte_of(ids[r], i, generation);
  }
  return rows;
}

inline bool is_row_of(const char* row, std::int64_t id, std::size_t row_bytes, int generation = 0) {
  for (std::size_t i = 0; i < row_bytes; ++i) {
    if (row[i] != byte_of(id, i, generation)) return false;
  }
  return true;
}

// Sorted, with the ends of the range of ids and -1, 0, 1 among them.
inline std::vector<std::int64_t> some_ids(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::set<std::int64_t> ids{INT64_MIN, -1, 0, 1, INT64_MAX};
  while (ids.size() < n) ids.insert(static_cast<std::int64_t>(random()));
  return {ids.begin(), ids.end()};
}

inline std::shared_ptr<const PageFile> write_file(const std::string& path, const std::vector<std::int64_t>& ids,
                                                  std::size_t row_bytes, bool direct = false, int generation = 0) {
  PageWriter writer(path, {7, row_bytes, "fp32", 10});
  const std::vector<char> rows = rows_of(ids, row_bytes, generation);
  writer.append(ids.data(), rows.data(), ids.size());
  writer.finish();
  return PageFile::open(path, direct);
}

}  // namespace planted
