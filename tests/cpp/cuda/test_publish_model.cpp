// The protocol of cuda/publish.cuh in every order that the memory model allows (publish_model.h): in small cases, in
// small random sets, and in long ones along random ways. Then what would be wrong in it or around it; each has to be
// found.
//
// `test_publish_model --trace` prints for each fault the shortest way that was found to a wrong row.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <unordered_set>

#include "check.h"
#include "publish_cases.h"

using namespace publish_model;

namespace {

bool tracing = false;

struct Verdict {
  const char* wrong = nullptr;
  std::size_t states = 0;
  std::vector<Action> path;
};

// Breadth first, so that the path to what is wrong is a shortest one.
Verdict explore(const Model& model, Model::Order order) {
  struct Node {
    std::string key;
    std::uint32_t parent;
    Action action;
  };
  std::vector<Node> nodes{{model.key(model.initial()), 0, {0, 0}}};
  std::unordered_set<std::uint64_t> met;
  std::vector<Action> actions;
  Verdict verdict;
  const auto path_to = [&](std::uint32_t at) {
    std::vector<Action> path;
    for (; at != 0; at = nodes[at].parent) path.insert(path.begin(), nodes[at].action);
    return path;
  };
  for (std::uint32_t at = 0; at < nodes.size() && verdict.wrong == nullptr; ++at) {
    const State state = model.from_key(nodes[at].key);
    model.actions(state, order, actions);
    if (actions.empty() && !model.is_over(state)) {
      verdict.wrong = "nobody can go on";
      verdict.path = path_to(at);
    }
    for (const Action action : actions) {
      State next = state;
      if (const char* const wrong = model.apply(next, action); wrong != nullptr) {
        verdict.wrong = wrong;
        verdict.path = path_to(at);
        verdict.path.push_back(action);
        break;
      }
      std::string key = model.key(next);
      std::uint64_t hash = key.size();
      for (std::size_t i = 0; i < key.size(); i += 8) {
        std::uint64_t part = 0;
        std::memcpy(&part, key.data() + i, std::min<std::size_t>(8, key.size() - i));
        hash = emberline::mix(hash ^ part) + 0x9E3779B97F4A7C15ull;
      }
      if (met.insert(hash).second) nodes.push_back({std::move(key), at, action});
    }
    nodes[at].key = {};
  }
  verdict.states = nodes.size();
  return verdict;
}

void tell(const Model& model, const Verdict& verdict) {
  State state = model.initial();
  for (const Action action : verdict.path) (void)model.apply(state, action, stdout);
  std::printf("  -> %s\n", verdict.wrong);
}

Model model_of(const Case& each, Fault fault, int readers, int entries) {
  Host host(fault);
  std::vector<Lookup> lookups;
  each.build(host, lookups);
  return Model(host.program(), lookups, readers, entries);
}

// Whether some case shows it, in all orders and with late loads alike.
bool is_found(Fault fault, const char* name) {
  std::size_t found = 0;
  bool alike = true;
  const Case* where = nullptr;
  Verdict shortest;
  for (const Case& each : kCases) {
    const Model model = model_of(each, fault, 1, 1);
    const Verdict verdict = explore(model, Model::kAllOrders);
    const bool is_wrong = verdict.wrong != nullptr;
    alike = alike && is_wrong == (explore(model, Model::kMissedLoads).wrong != nullptr);
    found += is_wrong;
    if (!is_wrong || (where != nullptr && verdict.path.size() >= shortest.path.size())) continue;
    where = &each;
    shortest = verdict;
  }
  std::printf("  %s: in %zu of %zu cases%s%s\n", name, found, kCases.size(), where == nullptr ? "" : ", first ",
              where == nullptr ? "" : shortest.wrong);
  if (tracing && where != nullptr) {
    std::printf("  case %s\n", where->name);
    tell(model_of(*where, fault, 1, 1), shortest);
  }
  return where != nullptr && alike;
}

struct Totals {
  std::size_t states = 0;
  std::uint64_t accepted = 0, missed = 0;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();

  void add(const Model& model, std::size_t more) {
    states += more;
    for (const std::uint64_t count : model.accepted) accepted += count;
    for (const std::uint64_t count : model.missed) missed += count;
  }
  void print(const char* what, const char* of) const {
    std::printf("  %s: %zu %s, %llu rows accepted, %llu misses, %.2f s\n", what, states, of,
                static_cast<unsigned long long>(accepted), static_cast<unsigned long long>(missed),
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
};

bool is_right(const Model& model, const Verdict& verdict, const char* name) {
  if (verdict.wrong == nullptr) return true;
  std::printf("%s:\n", name);
  tell(model, verdict);
  return false;
}

void all_right(Model::Order order, int readers, int entries, const char* what) {
  Totals totals;
  for (const Case& each : kCases) {
    const Model model = model_of(each, Fault::kNone, readers, entries);
    const Verdict verdict = explore(model, order);
    CHECK(is_right(model, verdict, each.name));
    // Each lookup that can have a row gets it in some order.
    for (std::size_t i = 0; i < model.lookups().size(); ++i) {
      CHECK((model.accepted[i] > 0) == (model.lookups()[i].expected != kNoRow));
    }
    totals.add(model, verdict.states);
    if (tracing) std::printf("  %-24s %zu states\n", each.name, verdict.states);
  }
  totals.print(what, "states");
}

// The sets of a seed, over the given places.
Model random_model(std::uint32_t seed, Fault fault, const std::vector<int>& places, int owners, int differing, int sets,
                   int readers, int entries) {
  std::mt19937 random(seed);
  Host host(fault);
  RandomSets changes(host, random, places, owners, differing);
  const int begin = static_cast<int>(random() % static_cast<std::uint32_t>(sets - 1));
  const int end = begin + 1 + static_cast<int>(random() % static_cast<std::uint32_t>(sets - begin - 1));
  changes.publish(sets, begin, end);
  return Model(host.program(), changes.lookups(), readers, entries);
}

Model small_model(std::uint32_t seed, Fault fault) {
  return random_model(seed, fault, {kP0, kP1, kQ0, kQ1}, 3, 1, 3, 1, 1);
}
Model long_model(std::uint32_t seed, Fault fault) {
  return random_model(seed, fault, {0, 1, 2, 3, 4, 5, 6, 7}, 9, 3, 10, 3, 40);
}

// One way through a model. How eager the publisher is, and how often a load gives the newest or the oldest value,
// differs from seed to seed.
Verdict walk(const Model& model, std::uint32_t seed) {
  std::mt19937 random(seed);
  const std::uint32_t eager = 1 + random() % 15, fresh = random() % 16, sleeper = random() % 8;
  Verdict verdict;
  State state = model.initial();
  std::vector<Action> actions;
  const auto first_of = [&](std::uint8_t actor) {
    return std::find_if(actions.begin(), actions.end(), [&](const Action& action) { return action.actor == actor; });
  };
  for (;;) {
    model.actions(state, Model::kAllOrders, actions);
    if (actions.empty()) break;
    std::uint8_t actor = actions[random() % actions.size()].actor;
    if (random() % 16 < eager && first_of(kPublisher) != actions.end()) actor = kPublisher;
    // One that goes slowly is in its section through more than one set.
    if (actor == sleeper && random() % 32 != 0) actor = actions.front().actor;
    const auto begin = first_of(actor);
    const auto end = std::find_if(begin, actions.end(), [&](const Action& action) { return action.actor != actor; });
    const auto count = static_cast<std::uint32_t>(end - begin);
    std::uint32_t choice = random() % count;
    if (actor != kPublisher && state.readers[actor].stage != Reader::kOutside && random() % 2 == 0) {
      choice = random() % 16 < fresh ? 0 : count - 1;
    }
    const Action action = begin[choice];
    verdict.path.push_back(action);
    ++verdict.states;
    verdict.wrong = model.apply(state, action);
    if (verdict.wrong != nullptr) return verdict;
  }
  if (!model.is_over(state)) verdict.wrong = "nobody can go on";
  return verdict;
}

constexpr std::uint32_t kSmall = 1000, kWalks = 3000;

}  // namespace

TEST(one_reader_in_all_orders) { all_right(Model::kAllOrders, 1, 1, "1 reader"); }
TEST(one_reader_that_comes_twice_in_all_orders) { all_right(Model::kAllOrders, 1, 2, "1 reader, twice"); }
TEST(two_readers_in_all_orders) { all_right(Model::kAllOrders, 2, 1, "2 readers"); }
TEST(two_readers_that_come_twice_in_all_orders) { all_right(Model::kAllOrders, 2, 2, "2 readers, twice"); }
TEST(two_readers_with_late_loads) { all_right(Model::kMissedLoads, 2, 3, "2 readers, three times, late loads"); }
TEST(three_readers) { all_right(Model::kMissedLoads, 3, 1, "3 readers, late loads"); }

TEST(random_sets_in_all_orders) {
  Totals totals;
  for (std::uint32_t seed = 0; seed < kSmall; ++seed) {
    const Model model = small_model(seed, Fault::kNone);
    const Verdict verdict = explore(model, Model::kAllOrders);
    CHECK(is_right(model, verdict, ("random sets " + std::to_string(seed)).c_str()));
    totals.add(model, verdict.states);
    if (verdict.wrong != nullptr) break;
  }
  totals.print("random sets, 1 reader", "states");
}

TEST(long_random_sets_on_random_ways) {
  Totals totals;
  for (std::uint32_t seed = 0; seed < kWalks; ++seed) {
    const Model model = long_model(seed, Fault::kNone);
    const Verdict verdict = walk(model, seed);
    CHECK(is_right(model, verdict, ("walk " + std::to_string(seed)).c_str()));
    totals.add(model, verdict.states);
    if (verdict.wrong != nullptr) break;
  }
  totals.print("10 random sets, 3 readers", "steps");
}

// What they cannot show is made by cases of its own.
TEST(random_sets_find_faults_too) {
  const std::pair<Fault, const char*> faults[] = {
      {Fault::kNoGrace, "no_grace"},
      {Fault::kGraceTooEarly, "grace_from_before_the_list"},
      {Fault::kIdsWithWords, "ids_and_words_in_one_list"},
      {Fault::kWordsBeforeIds, "words_before_ids"},
      {Fault::kRowsAfterWords, "rows_after_words"},
      {Fault::kSlotReusedInSet, "a_slot_reused_in_its_set"},
      {Fault::kNoFlags, "no_flags"},
      {Fault::kNoGraceAfterRows, "no_grace_after_rows"},
      {Fault::kNoGraceAfterIds, "no_grace_after_ids"},
      {Fault::kBaseSwappedUnderReaders, "base_swapped_under_its_readers"},
  };
  for (const auto& [fault, name] : faults) {
    std::uint32_t small = 0, walks = 0;
    while (small < kSmall && explore(small_model(small, fault), Model::kAllOrders).wrong == nullptr) ++small;
    while (walks < kWalks && walk(long_model(walks, fault), walks).wrong == nullptr) ++walks;
    CHECK(small < kSmall);
    CHECK(walks < kWalks);
    std::printf("  %-30s after %u small ones, %u walks\n", name, small, walks);
  }
}

// By what a reader on another GPU does, and nobody else.
TEST(readers_across_find_faults_too) {
  const auto each =
      std::find_if(kCases.begin(), kCases.end(), [](const Case& at) { return !std::strcmp(at.name, "across"); });
  for (const Fault fault :
       {Fault::kNoGrace, Fault::kGraceTooEarly, Fault::kIdsWithWords, Fault::kWordsBeforeIds, Fault::kRowsAfterWords,
        Fault::kSlotReusedInSet, Fault::kNoGraceAfterRows, Fault::kNoGraceAfterIds}) {
    CHECK(explore(model_of(*each, fault, 1, 1), Model::kAllOrders).wrong != nullptr);
  }
}

#define FINDS(name, fault) \
  TEST(name) { CHECK(is_found(Fault::fault, #name)); }

FINDS(no_grace, kNoGrace)
FINDS(grace_from_before_the_list, kGraceTooEarly)
FINDS(ids_and_words_in_one_list, kIdsWithWords)
FINDS(words_before_ids, kWordsBeforeIds)
FINDS(rows_after_words, kRowsAfterWords)
FINDS(a_slot_reused_in_its_set, kSlotReusedInSet)
FINDS(no_flags, kNoFlags)
FINDS(no_grace_after_rows, kNoGraceAfterRows)
FINDS(no_grace_after_ids, kNoGraceAfterIds)
FINDS(base_swapped_with_removal, kBaseSwappedWithRemoval)
FINDS(base_swapped_under_its_readers, kBaseSwappedUnderReaders)
FINDS(difference_dropped_under_readers, kDroppedUnderReaders)
FINDS(entry_of_a_difference_moves, kOverlayMoved)
FINDS(admitted_with_the_difference, kAdmittedWithOverlay)
FINDS(shared_slot_freed, kSharedSlotFreed)

int main(int argc, char** argv) {
  tracing = argc > 1 && std::strcmp(argv[1], "--trace") == 0;
  return check::run_all();
}
