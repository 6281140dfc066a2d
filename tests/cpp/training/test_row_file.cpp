// Records in a scratch file, against a plain map: whatever is put, erased and split, and when the disk is full.
#include <fcntl.h>
#include <sys/resource.h>

#include <csignal>
#include <map>
#include <random>
#include <unordered_map>

#include "check.h"
#include "tables.h"
#include "training/row_file.h"

using namespace emberline;
using namespace emberline::tests;

namespace {

using Body = std::vector<std::uint32_t>;

struct Record {
  RecordHead head;
  Body body;
};

bool same(const std::uint8_t* record, const Record& expected) {
  if (record == nullptr) return false;
  if (std::memcmp(record, &expected.head, sizeof(RecordHead)) != 0) return false;
  const std::size_t bytes = expected.body.size() * sizeof(std::uint32_t);
  return bytes == 0 || std::memcmp(record + sizeof(RecordHead), expected.body.data(), bytes) == 0;
}

// A file and what it must hold.
struct Pair {
  Pair(const std::string& folder, std::size_t body_words, bool by_parts)
      : file(folder, body_words * 4, by_parts), words(body_words) {}

  void put(std::int64_t id, std::mt19937_64& random) {
    Record record{{static_cast<std::uint32_t>(random()), static_cast<std::uint32_t>(random() % 1000),
                   static_cast<std::uint32_t>(random() % 50)},
                  Body(words)};
    for (std::uint32_t& word : record.body) word = static_cast<std::uint32_t>(random());
    const bool is_new = expected.find(id) == expected.end();
    CHECK(file.put(id, record.head, record.body.data()) == is_new);
    expected[id] = record;
  }

  // Finds and scans everything.
  void check() {
    CHECK(file.size() == expected.size());
    std::vector<std::int64_t> ids;
    for (const auto& [id, record] : expected) {
      ids.push_back(id);
      ids.push_back(id ^ std::int64_t{0x5555'0000});
    }
    std::size_t visited = 0;
    file.find(ids.data(), ids.size(), [&](std::size_t i, const std::uint8_t* found) {
      CHECK(i == visited++);
      const auto known = expected.find(ids[i]);
      CHECK(known == expected.end() ? found == nullptr : same(found, known->second));
      CHECK(found == file.find(ids[i]));
    });
    CHECK(visited == ids.size());
    std::size_t scanned = 0;
    for (std::size_t page = 0; page < file.pages(); ++page) {
      const RowFile::Page before = file.page(page);
      file.each(page, [&](std::int64_t id, const std::uint8_t* record) {
        const auto known = expected.find(id);
        CHECK(known != expected.end() && same(record, known->second));
        if (known == expected.end()) return;
        CHECK(before.second.meet(known->second.head.second - 1, known->second.head.second) ||
              known->second.head.second == 0);
        CHECK(known->second.head.third >= before.third.least && known->second.head.third <= before.third.most);
        ++scanned;
      });
    }
    CHECK(scanned == expected.size());
  }

  RowFile file;
  std::size_t words;
  std::unordered_map<std::int64_t, Record> expected;
};

std::size_t entries_of(const std::string& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

TEST(it_is_a_map_whatever_is_put_and_erased) {
  for (const std::size_t words :
       {std::size_t{0}, std::size_t{1}, std::size_t{32}, std::size_t{300}, std::size_t{8192}}) {
    for (const bool by_parts : {false, true}) {
      if (by_parts && words > 300) continue;  // a page for each part
      const Folder folder;
      Pair pair(folder.path, words, by_parts);
      CHECK(pair.file.page_records() >= 4);
      std::mt19937_64 random(words + by_parts);
      const std::int64_t ids = words > 1000 ? 200 : 4000;
      for (int round = 0; round < 4; ++round) {
        for (std::int64_t i = 0; i < 2 * ids; ++i) {
          const auto id = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(ids)) - ids / 2;
          if (random() % 3 == 0) {
            CHECK(pair.file.erase(id) == (pair.expected.erase(id) == 1));
          } else {
            pair.put(id, random);
          }
        }
        pair.check();
      }
      for (const std::int64_t id : {INT64_MIN, INT64_MAX}) pair.put(id, random);
      pair.check();
      CHECK(entries_of(folder.path) == 0);  // the file has no name
    }
  }
}

TEST(ids_whose_hashes_begin_alike_split_a_page_until_they_part) {
  const Folder folder;
  Pair pair(folder.path, 8, false);
  std::mt19937_64 random(3);
  std::vector<std::int64_t> alike;
  for (std::int64_t id = 0; alike.size() < 3 * pair.file.page_records(); ++id) {
    if (pair.file.hash(id) >> 54 == 77) alike.push_back(id);
  }
  for (const std::int64_t id : alike) pair.put(id, random);
  pair.check();
  CHECK(pair.file.pages() > 10);
  for (const std::int64_t id : alike) CHECK(pair.file.erase(id));
  CHECK(pair.file.size() == 0);
  const std::size_t pages = pair.file.pages();
  pair.expected.clear();
  for (const std::int64_t id : alike) pair.put(id, random);
  pair.check();
  CHECK(pair.file.pages() == pages);  // room that became free is used again
}

TEST(the_pages_of_a_part_hold_its_records_and_no_others) {
  const Folder folder;
  Pair pair(folder.path, 16, true);
  std::mt19937_64 random(4);
  for (int i = 0; i < 60'000; ++i) pair.put(static_cast<std::int64_t>(random()), random);
  std::size_t seen = 0;
  for (std::uint32_t part = 0; part < RowParts::kParts; ++part) {
    pair.file.each_page_of(part, [&](std::uint32_t page) {
      pair.file.each(page, [&](std::int64_t id, const std::uint8_t*) {
        CHECK(RowParts::part_of(id) == part);
        ++seen;
      });
    });
  }
  CHECK(seen == pair.expected.size());
}

TEST(a_scan_tightens_the_bounds_of_a_page) {
  const Folder folder;
  RowFile file(folder.path, 0, false);
  file.put(1, {1, 5, 9}, nullptr);
  file.put(2, {1, 7, 3}, nullptr);
  CHECK(file.page(0).second.meet(4, 5) && file.page(0).third.meet(8, 9) && !file.page(0).second.meet(7, 100));
  file.put(1, {1, 8, 4}, nullptr);
  CHECK(file.page(0).third.most == 9);
  file.each(0, [](std::int64_t, const std::uint8_t*) {});
  CHECK(file.page(0).second.least == 7 && file.page(0).second.most == 8);
  CHECK(file.page(0).third.least == 3 && file.page(0).third.most == 4);
}

TEST(a_full_disk_is_an_error_that_changes_nothing) {
  std::signal(SIGXFSZ, SIG_IGN);
  const Folder folder;
  Pair pair(folder.path, 30, false);
  std::mt19937_64 random(5);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit limited = before;
  limited.rlim_cur = 1 << 20;
  setrlimit(RLIMIT_FSIZE, &limited);
  int error = 0;
  for (std::int64_t id = 0; id < 100'000 && error == 0; ++id) {
    try {
      pair.put(id, random);
    } catch (const ScratchError& full) {
      error = full.error();
      CHECK(std::string(full.what()).find(folder.path) != std::string::npos);
      CHECK(pair.file.find(id) == nullptr);
    }
  }
  CHECK(error == EFBIG);
  CHECK(pair.expected.size() > 2000);
  pair.check();
  setrlimit(RLIMIT_FSIZE, &before);
  for (std::int64_t id = 200'000; id < 210'000; ++id) pair.put(id, random);
  pair.check();
}

TEST(a_folder_that_cannot_be_made_is_an_error) {
  const Folder folder;
  const std::string file = folder.path + "/file";
  close(open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  RowFile rows(file + "/rows", 4, false);
  const std::uint32_t body = 1;
  CHECK_THROWS(rows.put(1, {}, &body), ScratchError);
  CHECK(rows.size() == 0 && rows.find(1) == nullptr);
}

int main() { return check::run_all(); }
