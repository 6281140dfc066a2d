// Rows of many tables at once, by each way of reading, from one thread and from many.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>
#include <utility>

#include "check.h"
#include "pages/reader.h"
#include "planted.h"

using namespace planted;

namespace {

struct Asked {
  std::shared_ptr<const PageFile> file;
  std::vector<std::int64_t> ids;
  std::vector<char> rows;
  std::vector<std::uint8_t> states;

  Asked(std::shared_ptr<const PageFile> from, std::vector<std::int64_t> these)
      : file(std::move(from)),
        ids(std::move(these)),
        rows(ids.size() * (file ? file->geometry().row_bytes : 0)),
        states(ids.size(), 9) {}
  ReadRequest request() { return {file, ids.data(), ids.size(), rows.data(), states.data()}; }
};

void check_answers(const Asked& asked, const std::vector<std::int64_t>& held) {
  const std::size_t row_bytes = asked.file->geometry().row_bytes;
  for (std::size_t i = 0; i < asked.ids.size(); ++i) {
    const char* const row = asked.rows.data() + i * row_bytes;
    if (std::binary_search(held.begin(), held.end(), asked.ids[i])) {
      CHECK(asked.states[i] == kFound);
      CHECK(is_row_of(row, asked.ids[i], row_bytes));
    } else {
      CHECK(asked.states[i] == kAbsent);
      CHECK(std::all_of(row, row + row_bytes, [](char byte) { return byte == 0; }));
    }
  }
}

std::vector<std::int64_t> choose(const std::vector<std::int64_t>& held, std::size_t n, std::mt19937_64& random) {
  std::vector<std::int64_t> ids;
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t any = held[random() % held.size()];
    ids.push_back(i % 4 == 0 ? static_cast<std::int64_t>(random()) : i % 9 == 0 ? (any ^ 1) : any);
  }
  return ids;
}

// "auto" takes io_uring where there is one; "threads" is everywhere.
const std::vector<std::string> kWays{"auto", "threads"};

}  // namespace

TEST(ids_in_any_order_of_several_tables_are_answered_in_one_call) {
  const Folder folder;
  for (const std::string& way : kWays) {
    for (const bool direct : {false, true}) {
      PageReader reader({way, 8, 2, 4});
      std::mt19937_64 random(5);
      std::vector<std::vector<std::int64_t>> held;
      std::vector<Asked> asked;
      for (const std::size_t row_bytes : {16, 128, 5000}) {
        held.push_back(some_ids(700, row_bytes));
        const auto file = write_file(folder.file(std::to_string(row_bytes)), held.back(), row_bytes, direct);
        asked.emplace_back(file, choose(held.back(), 400, random));
      }
      asked.emplace_back(nullptr, std::vector<std::int64_t>{1, 2});
      asked.emplace_back(asked[0].file, std::vector<std::int64_t>{});
      std::vector<ReadRequest> requests;
      for (Asked& one : asked) requests.push_back(one.request());
      reader.read(requests, std::nullopt);
      for (std::size_t t = 0; t < held.size(); ++t) check_answers(asked[t], held[t]);
      CHECK(asked[3].states == std::vector<std::uint8_t>(2, kAbsent));
      CHECK(reader.stats().pages > 0 && reader.stats().unresolved == 0);
    }
  }
}

TEST(each_page_is_read_once_for_all_its_ids) {
  const Folder folder;
  const std::vector<std::int64_t> ids = some_ids(600, 1);
  const auto file = write_file(folder.file("f"), ids, 128);
  for (const std::string& way : kWays) {
    PageReader reader({way, 4, 2, 4});
    std::vector<std::int64_t> twice = ids;
    twice.insert(twice.end(), ids.rbegin(), ids.rend());
    Asked asked(file, twice);
    reader.read({asked.request()}, std::nullopt);
    check_answers(asked, ids);
    CHECK(reader.stats().pages == file->header().pages);
    Asked first(file, ids), second(file, ids);  // the same pages in two requests of a call
    reader.read({first.request(), second.request()}, std::nullopt);
    check_answers(first, ids);
    check_answers(second, ids);
    CHECK(reader.stats().pages + reader.stats().coalesced == 3 * file->header().pages);
  }
}

TEST(absent_ids_cost_hardly_any_read) {
  const Folder folder;
  const auto file = write_file(folder.file("f"), some_ids(5000, 1), 64);
  PageReader reader({"auto", 8, 2, 4});
  std::mt19937_64 random(6);
  std::vector<std::int64_t> strange(5000);
  for (std::int64_t& id : strange) id = static_cast<std::int64_t>(random());
  Asked asked(file, strange);
  reader.read({asked.request()}, std::nullopt);
  CHECK(asked.states == std::vector<std::uint8_t>(5000, kAbsent));
  CHECK(reader.stats().filtered > 4800);
  CHECK(reader.stats().pages < 90);
}

TEST(a_bad_page_is_an_error_that_names_it_and_others_are_answered) {
  const Folder folder;
  const std::string path = folder.file("f");
  const std::vector<std::int64_t> ids = some_ids(300, 2);
  write_file(path, ids, 128);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(kSector + 3 * kSector + 700);
    file.put('\x55');
  }
  const auto file = PageFile::open(path, false);
  for (const std::string& way : kWays) {
    PageReader reader({way, 4, 2, 4});
    Asked asked(file, ids);
    std::string text;
    try {
      reader.read({asked.request()}, std::nullopt);
    } catch (const CorruptPage& error) {
      text = error.what();
    }
    CHECK(text.find(path) == 0 && text.find("page 3 ") != std::string::npos);
    Asked good(file, {ids[0], ids[299]});
    reader.read({good.request()}, std::nullopt);
    check_answers(good, ids);
  }
}

TEST(a_file_that_shrinks_under_the_reader_is_an_error) {
  const Folder folder;
  const std::string path = folder.file("f");
  const std::vector<std::int64_t> ids = some_ids(300, 2);
  const auto file = write_file(path, ids, 128);
  std::filesystem::resize_file(path, 5 * kSector + 100);
  for (const std::string& way : kWays) {
    PageReader reader({way, 4, 2, 4});
    Asked asked(file, ids);
    CHECK_THROWS(reader.read({asked.request()}, std::nullopt), CorruptPage);
  }
}

TEST(rows_stay_readable_when_the_file_has_lost_its_name) {
  const Folder folder;
  const std::vector<std::int64_t> ids = some_ids(300, 2);
  const auto file = write_file(folder.file("f"), ids, 128, true);
  std::filesystem::remove(folder.file("f"));
  PageReader reader({"auto", 4, 2, 4});
  Asked asked(file, ids);
  reader.read({asked.request()}, std::nullopt);
  check_answers(asked, ids);
}

TEST(a_closed_reader_has_given_back_its_rings_and_threads) {
  const Folder folder;
  const std::vector<std::int64_t> ids = some_ids(300, 2);
  const auto file = write_file(folder.file("f"), ids, 128);
  const auto held = [] {
    const auto count = [](const char* of) {
      return std::distance(std::filesystem::directory_iterator(of), std::filesystem::directory_iterator());
    };
    return std::pair(count("/proc/self/fd"), count("/proc/self/task"));
  };
  const auto before = held();
  for (const std::string& way : kWays) {
    PageReader reader({way, 4, 2, 4});
    Asked asked(file, ids);
    reader.read({asked.request()}, std::nullopt);
    CHECK(held() != before);
    reader.close();
    CHECK(held() == before);
    CHECK(!reader.io().empty() && reader.stats().pages > 0);
    CHECK_THROWS(reader.read({asked.request()}, std::nullopt), DiskError);
    reader.close();
  }
}

TEST(many_threads_read_the_same_pages) {
  const Folder folder;
  std::vector<std::vector<std::int64_t>> held{some_ids(900, 1), some_ids(300, 2)};
  const auto first = write_file(folder.file("a"), held[0], 128), second = write_file(folder.file("b"), held[1], 512);
  for (const std::string& way : kWays) {
    PageReader reader({way, 8, 3, 4});  // fewer page queues than threads
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(static_cast<std::uint64_t>(t));
        for (int round = 0; round < 25; ++round) {
          Asked a(first, choose(held[0], 150, random)), b(second, choose(held[1], 60, random));
          Deadline deadline;
          if (round % 5 == 4) deadline = Clock::now() + std::chrono::microseconds(random() % 400);
          reader.read({a.request(), b.request()}, deadline);
          if (!deadline) {
            check_answers(a, held[0]);
            check_answers(b, held[1]);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

RUN_ALL_TESTS()
