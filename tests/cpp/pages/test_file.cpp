// What is written is what is read; what was not written so is refused by name.
#include <fstream>

#include "check.h"
#include "planted.h"

using namespace planted;

namespace {

std::vector<char> content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void replace(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const CorruptPage& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(rows_of_every_size_come_back_in_order) {
  const Folder folder;
  for (const std::size_t row_bytes : {1, 4, 64, 128, 512, 2048, 4096, 16'384}) {
    for (const std::size_t n : {5, 31, 1000}) {
      const std::vector<std::int64_t> ids = some_ids(n, row_bytes);
      const auto file = write_file(folder.file("f"), ids, row_bytes);
      CHECK(file->header().rows == n);
      CHECK(file->header().first_id == INT64_MIN && file->header().last_id == INT64_MAX);
      CHECK(file->row_type() == "fp32" && file->header().table == 7);
      CHECK(std::filesystem::file_size(folder.file("f")) == file->header().file_bytes);
      CHECK(3 * n * (row_bytes + 8) < 100'000 || 3 * n * (row_bytes + 8) > file->header().file_bytes);
      std::size_t seen = 0;
      for (PageCursor cursor(file); !cursor.at_end(); cursor.advance(1), ++seen) {
        CHECK(cursor.id() == ids[seen]);
        CHECK(is_row_of(cursor.rows(), ids[seen], row_bytes));
      }
      CHECK(seen == n);
      CHECK(file->problems(0, file->header().pages).empty());
      CHECK(!std::filesystem::exists(folder.file("f.part")));
    }
  }
}

TEST(an_empty_file_has_no_rows) {
  const Folder folder;
  const auto file = write_file(folder.file("f"), {}, 64);
  CHECK(file->header().rows == 0 && file->header().pages == 0);
  CHECK(PageCursor(file).at_end());
  const std::int64_t id = 5;
  std::uint64_t page = 0;
  file->locate(&id, 1, &page);
  CHECK(page == PageFile::kNoPage);
}

TEST(a_walk_begins_at_any_id) {
  const Folder folder;
  const std::vector<std::int64_t> ids = some_ids(500, 1);
  const auto file = write_file(folder.file("f"), ids, 200);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK(PageCursor(file, ids[i]).id() == ids[i]);
    if (ids[i] == INT64_MAX) continue;
    const std::int64_t between = ids[i] + 1;
    CHECK(PageCursor(file, between).id() == (ids[i + 1] == between ? between : ids[i + 1]));
  }
  const auto low = write_file(folder.file("g"), {1, 2, 3}, 200);
  CHECK(PageCursor(low, 4).at_end());
}

TEST(pages_that_ids_are_led_to_hold_them) {
  const Folder folder;
  const std::vector<std::int64_t> ids = some_ids(5000, 2);
  const auto file = write_file(folder.file("f"), ids, 100);
  std::vector<std::uint64_t> pages(ids.size());
  file->locate(ids.data(), ids.size(), pages.data());
  for (std::size_t i = 0; i < ids.size(); ++i) CHECK(pages[i] == i / file->geometry().rows_per_page);
}

TEST(ids_out_of_order_or_twice_are_refused_and_no_file_appears) {
  const Folder folder;
  const std::vector<char> row(64);
  {
    PageWriter writer(folder.file("f"), {0, 64, "fp32", 10});
    const std::int64_t good = 5, same = 5, below = -7;
    writer.append(&good, row.data(), 1);
    CHECK_THROWS(writer.append(&same, row.data(), 1), std::invalid_argument);
    CHECK_THROWS(writer.append(&below, row.data(), 1), std::invalid_argument);
  }
  CHECK(std::filesystem::is_empty(std::filesystem::path(folder.file("f")).parent_path()));
  CHECK_THROWS(PageWriter(folder.file("f"), {0, 0, "fp32", 10}), std::invalid_argument);
  CHECK_THROWS(PageWriter(folder.file("f"), {0, 64, "sixteen characters", 10}), std::invalid_argument);
  CHECK_THROWS(PageWriter(folder.file("no/f"), {0, 64, "fp32", 10}), DiskError);
}

TEST(any_byte_that_changed_is_noticed_where_it_is) {
  const Folder folder;
  const std::string path = folder.file("f");
  const std::vector<std::int64_t> ids = some_ids(300, 3);
  const auto good = write_file(path, ids, 128);
  const std::vector<char> bytes = content(path);
  std::mt19937_64 random(4);
  for (int round = 0; round < 300; ++round) {
    std::vector<char> bad = bytes;
    const std::size_t at = random() % (round < 60 ? sizeof(FileHeader) : bad.size());
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    replace(path, bad);
    const FileHeader& header = good->header();
    const bool in_header = at < sizeof(FileHeader);
    const bool in_pages = at >= kSector && at < header.directory_offset;
    const bool in_index =
        (at >= header.directory_offset && at < header.directory_offset + header.pages * 8) ||
        (at >= header.filters_offset && at < header.filters_offset + header.pages * header.filter_bytes);
    const std::string at_open = refusal([&] { PageFile::open(path, false); });
    CHECK(at_open.empty() != (in_header || in_index));
    if (!at_open.empty()) {
      CHECK(at_open.rfind(path, 0) == 0);
      continue;
    }
    const auto file = PageFile::open(path, false);
    const std::string text = refusal([&] {
      for (PageCursor cursor(file); !cursor.at_end();) cursor.advance(cursor.together());
    });
    const std::string page = "page " + std::to_string((at - kSector) / kSector) + " ";
    CHECK(text.empty() != in_pages);
    CHECK(!in_pages || text.find(page) != std::string::npos);
    CHECK(file->problems(0, header.pages).size() == in_pages);
  }
}

TEST(a_page_in_the_wrong_place_or_of_another_file_is_noticed) {
  const Folder folder;
  const std::vector<std::int64_t> ids = some_ids(300, 5);
  write_file(folder.file("a"), ids, 128);
  write_file(folder.file("b"), ids, 128);
  std::vector<char> bytes = content(folder.file("a"));
  const std::vector<char> other = content(folder.file("b"));
  std::copy_n(other.begin() + kSector, kSector, bytes.begin() + kSector);
  std::copy_n(bytes.begin() + 3 * kSector, kSector, bytes.begin() + 4 * kSector);
  replace(folder.file("a"), bytes);
  const auto file = PageFile::open(folder.file("a"), false);
  const std::vector<std::string> problems = file->problems(0, file->header().pages);
  CHECK(problems.size() == 2);
  CHECK(problems[0].find("page 0 ") != std::string::npos && problems[1].find("page 3 ") != std::string::npos);
}

TEST(a_file_that_was_cut_off_is_refused) {
  const Folder folder;
  const std::string path = folder.file("f");
  write_file(path, some_ids(300, 6), 128);
  const std::vector<char> bytes = content(path);
  for (const std::size_t n : {std::size_t{0}, std::size_t{100}, kSector, bytes.size() / 2, bytes.size() - 1}) {
    replace(path, std::vector<char>(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n)));
    CHECK(refusal([&] { PageFile::open(path, false); }).find("cut off") != std::string::npos);
  }
  CHECK_THROWS(PageFile::open(folder.file("none"), false), DiskError);
}

RUN_ALL_TESTS()
