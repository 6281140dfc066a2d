// A model of cuda/publish.cuh in which every step is one access to the GPU's memory, and the steps that a checker
// tries in all orders.
//
// Publisher: a list of launches (publish_program.h). Launches follow each other on one stream; the stores of one list
// land one by one, in every order. Readers: the search is that of lookup.cuh itself, whose loads are led here
// (publish_search.h); then two loads for the halves of the row. A reader enters and leaves under the lock under which
// the publisher looks who is inside. One of another GPU, which has nothing itself, is no different, as long as its
// loads are the system's.
//
// Memory. Each location has a history of values, one a launch at most. A load may give any of them, old ones too,
// except
//   - those before the last one that the reader knows of: of what was complete when the publisher last held the lock
//     before the reader entered
//   - those before a value that the reader already loaded there (coherence)
// No load orders another one: a value may be as old as the reader's section. That a load is done late, or ahead of
// loads before it, shows only in which value it gives, and is thus among these: it is the model of C++ and PTX for
// readers that store nothing.
//
// Properties. A slot that a reader accepts holds a whole row of the owner that was asked for, of a version that the
// reader did not know to be replaced when it entered, or of exactly the version that its snapshot has. An owner that
// stood at a position from what the reader knew at its entering until now is found; so at rest every owner is.
//
// Left out without loss: a load that can only ever give one value happens with the step before it; states that were
// met are not gone on from (known by 64-bit hashes; that two of a million agree by chance happens in less than 1 of
// 10^7 runs). kMissedLoads leaves out more: a launch is one step, and a reader loads when the publisher waits for it,
// or is done. Later, a load may still give every value that it could give earlier, and the store order within a list
// does not show. Only of a miss it may know less: its owner may have left meanwhile.
#pragma once

#include <cstdio>
#include <cstring>
#include <string>

#include "publish_search.h"

namespace publish_model {

constexpr int kMostReaders = 3;

struct Action {
  std::uint8_t actor;  // a reader, or kPublisher
  std::uint8_t choice;  // a store, a lookup, or which value of a history
};
constexpr std::uint8_t kPublisher = 255, kWholeLaunch = 255;

struct Reader {
  enum Stage : std::uint8_t { kOutside, kSearching, kReadingRow, kDone };
  std::uint8_t stage = kOutside, entries = 0, lookup = 0, entered = 0, known = 0, slot = 0, loads = 0;
  std::array<std::uint8_t, kMostLoads> log{};
};

struct State {
  std::uint16_t step = 0;
  std::uint8_t awaited = 0;
  std::uint64_t done = 0;  // stores of the launch under way
  std::array<Reader, kMostReaders> readers{};
};

class Model {
 public:
  enum Order { kAllOrders, kMissedLoads };

  // Each of the readers enters at most `entries` times, each time for one of the lookups.
  Model(Program program, std::vector<Lookup> lookups, int readers, int entries)
      : program_(std::move(program)), lookups_(std::move(lookups)), readers_(readers), entries_(entries) {
    accepted.resize(lookups_.size());
    missed.resize(lookups_.size());
    program_.end();
  }

  // How often each lookup ended so, over all steps that were tried.
  mutable std::vector<std::uint64_t> accepted, missed;

  const std::vector<Lookup>& lookups() const { return lookups_; }
  State initial() const {
    State state;
    for (int r = 0; r < readers_; ++r) state.readers[r].entries = static_cast<std::uint8_t>(entries_);
    return state;
  }
  bool is_over(const State& state) const { return state.step + 1u == program_.steps().size(); }

  void actions(const State& state, Order order, std::vector<Action>& out) const {
    out.clear();
    const Step& step = program_.steps()[state.step];
    const bool waiting = step.kind == Step::kWait;
    if (order == kMissedLoads) {
      for (int r = 0; r < readers_; ++r) {
        if (state.readers[r].stage == Reader::kOutside) continue;
        if (is_over(state) || (waiting && (state.awaited >> r & 1) != 0)) return reader_actions(state, r, out);
      }
    }
    if (step.kind == Step::kLaunch && order == kMissedLoads) {
      out.push_back({kPublisher, kWholeLaunch});
    } else if (step.kind == Step::kLaunch) {
      for (std::size_t i = 0; i < step.stores.size(); ++i) {
        if ((state.done >> i & 1) == 0) out.push_back({kPublisher, static_cast<std::uint8_t>(i)});
      }
    } else if (!is_over(state) && (!waiting || state.awaited == 0)) {
      out.push_back({kPublisher, 0});
    }
    for (int r = 0; r < readers_; ++r) {
      if (order == kAllOrders || state.readers[r].stage == Reader::kOutside) reader_actions(state, r, out);
    }
  }

  // What is wrong then, or null. trace: where the step is notified.
  const char* apply(State& state, Action action, std::FILE* trace = nullptr) const {
    if (action.actor == kPublisher) {
      publisher_step(state, action.choice, trace);
      return nullptr;
    }
    Reader& reader = state.readers[action.actor];
    if (trace != nullptr) std::fprintf(trace, "  reader %d ", action.actor);
    if (reader.stage == Reader::kOutside) {
      reader.stage = Reader::kSearching;
      reader.entries--;
      reader.lookup = action.choice;
      reader.entered = reader.known = static_cast<std::uint8_t>(program_.steps()[state.step].known);
      if (trace != nullptr) tell_entering(lookups_[action.choice], trace);
      return settle(state, action.actor, trace);
    }
    if (reader.stage == Reader::kDone) {
      reader = Reader{.entries = reader.entries};
      state.awaited &= static_cast<std::uint8_t>(~(1u << action.actor));
      if (trace != nullptr) std::fprintf(trace, "leaves\n");
      return nullptr;
    }
    const Range range = next_load(state, reader);
    load(reader, range, action.choice, trace);
    return settle(state, action.actor, trace);
  }

  std::string key(const State& state) const {
    std::string bytes;
    const auto put = [&](const void* data, std::size_t size) { bytes.append(static_cast<const char*>(data), size); };
    put(&state.step, sizeof(state.step));
    put(&state.awaited, sizeof(state.awaited));
    put(&state.done, sizeof(state.done));
    for (int r = 0; r < readers_; ++r) {
      const Reader& reader = state.readers[r];
      const std::uint8_t head[] = {reader.stage, reader.entries, reader.lookup, reader.entered,
                                   reader.known, reader.slot,    reader.loads};
      put(head, sizeof(head));
      put(reader.log.data(), reader.loads);
    }
    return bytes;
  }
  State from_key(const std::string& bytes) const {
    State state;
    const char* at = bytes.data();
    const auto get = [&](void* data, std::size_t size) {
      std::memcpy(data, at, size);
      at += size;
    };
    get(&state.step, sizeof(state.step));
    get(&state.awaited, sizeof(state.awaited));
    get(&state.done, sizeof(state.done));
    for (int r = 0; r < readers_; ++r) {
      Reader& reader = state.readers[r];
      for (std::uint8_t* field : {&reader.stage, &reader.entries, &reader.lookup, &reader.entered, &reader.known,
                                  &reader.slot, &reader.loads}) {
        get(field, 1);
      }
      get(reader.log.data(), reader.loads);
    }
    return state;
  }

 private:
  // The next load of a reader: which values it may give; location -1 when there is none to come.
  struct Range {
    int location = -1, oldest = 0, newest = 0;
    bool astray = false;
    std::uint32_t slot = 0;
  };

  bool is_stored(const State& state, const Message& message) const {
    const int before = program_.steps()[state.step].before;
    return message.launch <= before || (message.launch == before + 1 && (state.done >> message.store & 1) != 0);
  }
  int newest(const State& state, int location) const {
    const std::vector<Message>& history = program_.history(location);
    int at = static_cast<int>(history.size()) - 1;
    while (!is_stored(state, history[at])) --at;
    return at;
  }
  int oldest(int location, int known) const {
    const std::vector<Message>& history = program_.history(location);
    int at = static_cast<int>(history.size()) - 1;
    while (history[at].launch > known) --at;
    return at;
  }

  Range next_load(const State& state, const Reader& reader) const {
    Range range;
    if (reader.stage == Reader::kReadingRow) {
      range.location = row_location(reader.slot, reader.loads);
      range.oldest = oldest(range.location, reader.known);
      range.newest = newest(state, range.location);
      return range;
    }
    Replay search{program_, reader.log.data(), reader.loads};
    replay = &search;
    range.slot = find(lookups_[reader.lookup]);
    range.location = search.wanted;
    range.astray = search.astray;
    if (range.location < 0) return range;
    range.oldest = oldest(range.location, reader.known);
    for (int at = 0; at < search.loads; ++at) {
      if (search.locations[at] == range.location) range.oldest = std::max<int>(range.oldest, reader.log[at]);
    }
    range.newest = newest(state, range.location);
    return range;
  }

  void reader_actions(const State& state, int r, std::vector<Action>& out) const {
    const Reader& reader = state.readers[r];
    const auto add = [&](int choice) {
      out.push_back({static_cast<std::uint8_t>(r), static_cast<std::uint8_t>(choice)});
    };
    if (reader.stage == Reader::kDone) return add(0);
    if (reader.stage == Reader::kOutside) {
      const int phase = program_.steps()[state.step].phase;
      for (std::size_t i = 0; reader.entries > 0 && i < lookups_.size(); ++i) {
        if ((lookups_[i].phases >> phase & 1) != 0) add(static_cast<int>(i));
      }
      return;
    }
    const Range range = next_load(state, reader);
    for (int value = range.newest; value >= range.oldest; --value) add(value);
  }

  void load(Reader& reader, const Range& range, int value, std::FILE* trace) const {
    reader.log[reader.loads++] = static_cast<std::uint8_t>(value);
    if (trace == nullptr) return;
    tell_location(range.location, trace);
    const std::vector<Message>& history = program_.history(range.location);
    std::fprintf(trace, " loaded: ");
    tell_value(range.location, history[value].value, trace);
    std::fprintf(trace, " of launch %d\n", history[value].launch);
  }

  // Loads that can only ever give one value, and the ends of stages.
  const char* settle(State& state, int r, std::FILE* trace) const {
    Reader& reader = state.readers[r];
    for (;;) {
      if (reader.stage == Reader::kReadingRow && reader.loads == 2) {
        const char* const wrong = judge_row(reader);
        ++accepted[reader.lookup];
        reader = Reader{.stage = Reader::kDone, .entries = reader.entries};
        return wrong;
      }
      const Range range = next_load(state, reader);
      if (range.astray) return "another GPU's memory, loaded as if it were its own";
      if (range.location >= 0) {
        if (range.oldest + 1u != program_.history(range.location).size()) return nullptr;
        if (reader.loads == kMostLoads) return "a search that does not end";
        // A trace leaves out positions that nobody ever has.
        const bool telling = trace != nullptr && program_.history(range.location)[range.oldest].value != 0;
        if (telling) std::fprintf(trace, "  reader %d ", r);
        load(reader, range, range.oldest, telling ? trace : nullptr);
      } else if (range.slot == 0) {
        ++missed[reader.lookup];
        const bool lost = is_lost(state, reader);
        reader = Reader{.stage = Reader::kDone, .entries = reader.entries};
        return lost ? "does not find what is there" : nullptr;
      } else {
        if (trace != nullptr) std::fprintf(trace, "  reader %d accepts slot %u\n", r, range.slot);
        reader.stage = Reader::kReadingRow;
        reader.slot = static_cast<std::uint8_t>(range.slot);
        reader.loads = 0;
      }
    }
  }

  const char* judge_row(const Reader& reader) const {
    const Lookup& lookup = lookups_[reader.lookup];
    const auto half = [&](int at) { return program_.history(row_location(reader.slot, at))[reader.log[at]].row; };
    const std::uint32_t row = half(0);
    if (row != half(1)) return "half a row";
    if (row == 0) return "no row";
    if (row >> 16 != lookup.owner.number) return "another owner's row";
    if (lookup.expected == kNoRow) return "a row that its snapshot does not have";
    const int version = static_cast<int>(row & 0xFFFF);
    if (lookup.expected >= 0) return version == lookup.expected ? nullptr : "another snapshot's row";
    return is_replaced(row, reader.entered) ? "a row that had been replaced" : nullptr;
  }
  // Whether no word has named the row since.
  bool is_replaced(std::uint32_t row, int launch) const {
    for (int position = 0; position < kPositions; ++position) {
      const std::vector<Message>& history = program_.history(word_location(position));
      for (std::size_t i = 0; i < history.size(); ++i) {
        if (history[i].row == row && (i + 1 == history.size() || history[i + 1].launch > launch)) return false;
      }
    }
    return true;
  }
  // Whether a position had the owner from what the reader knew at its entering until now, in the first table that has
  // any.
  bool is_lost(const State& state, const Reader& reader) const {
    const Lookup& lookup = lookups_[reader.lookup];
    for (std::size_t at = 0; at <= lookup.chain.size(); ++at) {
      const std::uint32_t table =
          lookup.owner.table + (at < lookup.chain.size() ? lookup.chain[at] * kBaseTables : std::uint32_t{0});
      bool any = false;
      for (int position = 0; position < kPositions; ++position) {
        const int of_word = word_location(position), of_id = id_location(position);
        const std::vector<Message>& history = program_.history(of_word);
        const int first = oldest(of_word, reader.entered), last = newest(state, of_word);
        bool always = true, asks_host = false;
        for (int i = first; i <= last; ++i) {
          const std::uint64_t word = history[i].value;
          const std::uint64_t id = program_.history(of_id)[oldest(of_id, history[i].launch)].value;
          const bool named = emberline::word::slot(word) != 0 && emberline::word::table(word) == table &&
                             id == static_cast<std::uint64_t>(lookup.owner.id);
          asks_host = asks_host || (named && emberline::word::slot(word) == kHostsRow);
          any = any || named;
          always = always && named;
        }
        if (always) return !asks_host;
      }
      if (any) return false;
    }
    return false;
  }

  void publisher_step(State& state, std::uint8_t choice, std::FILE* trace) const {
    const Step& step = program_.steps()[state.step];
    if (step.kind == Step::kLook) {
      for (int r = 0; r < readers_; ++r) {
        if (state.readers[r].stage != Reader::kOutside) state.awaited |= static_cast<std::uint8_t>(1u << r);
      }
    }
    if (trace != nullptr && step.kind == Step::kPhase) {
      std::fprintf(trace, "  publisher tells readers: phase %d\n", program_.steps()[state.step + 1u].phase);
    } else if (trace != nullptr && step.kind != Step::kLaunch) {
      std::fprintf(trace, "  publisher %s\n", step.name);
    }
    const std::uint64_t whole = (std::uint64_t{1} << step.stores.size()) - 1;
    const std::uint64_t before = state.done;
    state.done = choice == kWholeLaunch ? whole : state.done | std::uint64_t{1} << choice;
    for (std::size_t i = 0; trace != nullptr && i < step.stores.size(); ++i) {
      if (((state.done ^ before) >> i & 1) == 0) continue;
      std::fprintf(trace, "  publisher launch %d, %s: ", step.before + 1, step.name);
      tell_location(step.stores[i].location, trace);
      std::fprintf(trace, " := ");
      tell_value(step.stores[i].location, step.stores[i].value, trace);
      std::fprintf(trace, "\n");
    }
    if (step.kind == Step::kLaunch && state.done != whole) return;
    state.done = 0;
    ++state.step;
  }

  static void tell_location(int location, std::FILE* out) {
    const int in_bucket = location % emberline::kBucketWords, bucket = location / emberline::kBucketWords;
    if (location >= kBucketLocations) {
      std::fprintf(out, "row of slot %d, half %d", (location - kBucketLocations) / 2,
                   (location - kBucketLocations) % 2);
    } else {
      std::fprintf(out, "%s %d of bucket %d", in_bucket < 4 ? "id" : "word", in_bucket % 4, bucket);
    }
  }
  static void tell_value(int location, std::uint64_t value, std::FILE* out) {
    if (location >= kBucketLocations) {
      std::fprintf(out, "owner %u version %u", static_cast<unsigned>(value >> 16),
                   static_cast<unsigned>(value & 0xFFFF));
    } else if (location % emberline::kBucketWords < 4) {
      std::fprintf(out, "%lld", static_cast<long long>(value));
    } else {
      std::fprintf(out, "{slot %u, table %u, flags %u}", emberline::word::slot(value), emberline::word::table(value),
                   static_cast<unsigned>(value >> 56));
    }
  }
  static void tell_entering(const Lookup& lookup, std::FILE* out) {
    std::fprintf(out, "enters for id %lld of table %u, owner %u, chain of %zu, version %d\n",
                 static_cast<long long>(lookup.owner.id), lookup.owner.table, lookup.owner.number, lookup.chain.size(),
                 lookup.expected);
  }

  Program program_;
  std::vector<Lookup> lookups_;
  int readers_, entries_;
};

}  // namespace publish_model
