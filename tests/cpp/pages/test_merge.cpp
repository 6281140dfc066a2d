// Merged files beside std::map, in steps of every size.
#include <map>

#include "check.h"
#include "pages/merge.h"
#include "planted.h"

using namespace planted;

namespace {

constexpr std::size_t kRowBytes = 96;
using Model = std::map<std::int64_t, int>;  // id -> generation

void same(const std::shared_ptr<const PageFile>& file, const Model& model) {
  CHECK(file->header().rows == model.size());
  auto expected = model.begin();
  for (PageCursor cursor(file); !cursor.at_end(); cursor.advance(1), ++expected) {
    CHECK(expected != model.end() && cursor.id() == expected->first);
    CHECK(is_row_of(cursor.rows(), expected->first, kRowBytes, expected->second));
  }
  CHECK(expected == model.end());
}

}  // namespace

TEST(changes_on_top_of_a_file_win) {
  const Folder folder;
  std::mt19937_64 random(1);
  for (int round = 0; round < 60; ++round) {
    const bool has_base = round % 5 != 0;
    std::vector<std::int64_t> ids = some_ids(5 + random() % 900, random());
    Model model;
    std::shared_ptr<const PageFile> base;
    if (has_base) {
      base = write_file(folder.file("base"), ids, kRowBytes);
      for (const std::int64_t id : ids) model[id] = 0;
    }
    // Some ids of the base, some of their neighbours, some others.
    std::set<std::int64_t> changed;
    for (std::size_t i = random() % 300; i > 0; --i) {
      const std::int64_t id = ids[random() % ids.size()];
      changed.insert(i % 3 == 0 || id == INT64_MAX ? static_cast<std::int64_t>(random()) : id + (i % 3 == 1));
    }
    const std::vector<std::int64_t> list(changed.begin(), changed.end());
    const std::vector<char> rows = rows_of(list, kRowBytes, 1);
    std::vector<std::uint8_t> removed(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      removed[i] = random() % 3 == 0;
      if (removed[i])
        model.erase(list[i]);
      else
        model[list[i]] = 1;
    }
    PageWriter writer(folder.file("new"), {7, kRowBytes, "fp32", 10});
    ChangesMerge merge(base, writer);
    const std::size_t step = 1 + random() % 50'000;
    for (std::size_t at = 0; at < list.size();) {
      const std::size_t n = std::min<std::size_t>(list.size() - at, random() % 100);
      merge.offer(list.data() + at, rows.data() + at * kRowBytes, removed.data() + at, n);
      at += n;
      while (!merge.advance(step)) {
      }
    }
    while (!merge.finish(step)) {
    }
    writer.finish();
    same(PageFile::open(folder.file("new"), false), model);
  }
}

TEST(changes_must_come_in_order) {
  const Folder folder;
  PageWriter writer(folder.file("new"), {7, kRowBytes, "fp32", 10});
  ChangesMerge merge(nullptr, writer);
  const std::vector<std::int64_t> ids{3, 5};
  const std::vector<char> rows = rows_of(ids, kRowBytes);
  const std::uint8_t removed[2] = {};
  merge.offer(ids.data(), rows.data(), removed, 2);
  CHECK_THROWS(merge.offer(ids.data(), rows.data(), removed, 2), std::invalid_argument);  // not taken yet
  CHECK(merge.advance(1 << 20));
  CHECK_THROWS(merge.offer(ids.data() + 1, rows.data(), removed, 1), std::invalid_argument);
  const auto other = write_file(folder.file("other"), ids, kRowBytes + 4);
  CHECK_THROWS(ChangesMerge(other, writer), std::invalid_argument);
}

TEST(sorted_runs_become_one_file) {
  const Folder folder;
  std::mt19937_64 random(2);
  for (const std::size_t runs : {0, 1, 2, 3, 17}) {
    Model model;
    std::vector<std::vector<std::int64_t>> parts(runs);
    if (runs > 0) {
      for (const std::int64_t id : some_ids(2000, runs)) {
        // In stretches, as real runs are, and alone.
        parts[(model.size() / 40 + random() % 2) % runs].push_back(id);
        model[id] = 0;
      }
    }
    std::vector<std::shared_ptr<const PageFile>> files;
    for (std::size_t run = 0; run < runs; ++run) {
      files.push_back(write_file(folder.file("run" + std::to_string(run)), parts[run], kRowBytes));
    }
    PageWriter writer(folder.file("new"), {7, kRowBytes, "fp32", 10});
    RunsMerge merge(files, writer);
    while (!merge.advance(10'000)) {
    }
    writer.finish();
    same(PageFile::open(folder.file("new"), false), model);
  }
}

TEST(an_id_in_two_runs_is_refused) {
  const Folder folder;
  const auto a = write_file(folder.file("a"), {1, 5, 9}, kRowBytes);
  const auto b = write_file(folder.file("b"), {2, 5}, kRowBytes);
  PageWriter writer(folder.file("new"), {7, kRowBytes, "fp32", 10});
  RunsMerge merge({a, b}, writer);
  CHECK_THROWS(merge.advance(1 << 20), std::invalid_argument);
}

RUN_ALL_TESTS()
