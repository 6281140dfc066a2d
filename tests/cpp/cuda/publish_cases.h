// Small cases for the model of cuda/publish.cuh, each with what readers may look up in it, and random sets of any
// size.
#pragma once

#include <functional>
#include <initializer_list>
#include <random>

#include "publish_model.h"

namespace publish_model {

constexpr std::uint32_t phases(std::initializer_list<int> numbers) {
  std::uint32_t bits = 0;
  for (const int number : numbers) bits |= 1u << number;
  return bits;
}

struct Case {
  const char* name;
  std::function<void(Host&, std::vector<Lookup>&)> build;
};

constexpr int kP0 = 0, kP1 = 1, kQ0 = 4, kQ1 = 5;  // positions of the first bucket, and of the second

// One position, always the same owner.
inline void updates(Host& host, std::vector<Lookup>& lookups) {
  const Owner a = host.owner(0);
  host.put(a, kP0);
  host.start();
  for (int set = 0; set < 3; ++set) {
    host.update(a);
    host.publish();
  }
  lookups = {{a, {}}};
}

// One position that two owners have in turn.
inline void replacements(Host& host, std::vector<Lookup>& lookups) {
  const Owner a = host.owner(0), b = host.owner(0);
  host.put(a, kP0);
  host.start();
  for (int set = 0; set < 3; ++set) {
    host.erase(set % 2 == 0 ? a : b);
    host.put(set % 2 == 0 ? b : a, kP0);
    host.publish();
  }
  lookups = {{a, {}}, {b, {}}};
}

// Two positions, three owners, slots that go from one to the other; a third position that nobody touches.
inline void trades(Host& host, std::vector<Lookup>& lookups) {
  const Owner a = host.owner(0), b = host.owner(0), c = host.owner(0), still = host.owner(0);
  host.put(a, kP0);
  host.put(b, kP1);
  host.put(still, 2);
  host.start();
  host.erase(a);
  host.put(c, kP0);
  host.publish();
  host.erase(b);
  host.put(a, kP1);
  host.publish();
  host.erase(c);
  host.put(b, kP0);
  host.update(a);
  host.publish();
  lookups = {{a, {}}, {c, {}}, {still, {}}};
}

// Emptied in one set, taken by another in the next, which goes at once.
inline void erasures(Host& host, std::vector<Lookup>& lookups) {
  const Owner a = host.owner(0), b = host.owner(0);
  host.put(a, kP0);
  host.start();
  host.erase(a);
  host.publish();
  host.put(b, kP0);
  host.publish();
  host.erase(b);
  host.put(a, kP1);
  host.publish();
  lookups = {{a, {}}, {b, {}}};
}

// An owner goes to its second bucket, somebody takes its place, and it comes back to another.
inline void moves(Host& host, std::vector<Lookup>& lookups) {
  const Owner a = host.owner(0), b = host.owner(0), far = host.owner(0);
  host.put(a, kP0);
  host.put(far, kQ0);
  host.start();
  host.move(a, kQ1);
  host.put(b, kP0);
  host.publish();
  host.erase(b);
  host.move(a, kP0);
  host.publish();
  lookups = {{a, {}}, {b, {}}, {far, {}}};
}

// One id under two tables, at one position.
inline void tables(Host& host, std::vector<Lookup>& lookups) {
  const Owner a = host.owner(0);
  const Owner other{a.id, 1, a.number + 100};
  host.put(a, kP0);
  host.start();
  for (int set = 0; set < 3; ++set) {
    host.erase(set % 2 == 0 ? a : other);
    host.put(set % 2 == 0 ? other : a, kP0);
    host.publish();
  }
  lookups = {{a, {}}, {other, {}}};
}

// A difference comes, the base takes its row over, it goes; then its slots and positions are used again. `at`: where
// its entry stands; in its second bucket, or beside the base's.
inline void settle(Host& host, std::vector<Lookup>& lookups, int at, bool row) {
  const bool together = host.fault() == Fault::kBaseSwappedWithRemoval;
  const bool too_early = host.fault() == Fault::kBaseSwappedUnderReaders;
  const Owner a = host.owner(0, 0), b = host.owner(at / 4), over = Host::under(a, 1);
  const auto old_version = static_cast<int>(host.put(a, kP0));
  host.start();
  int version = kNoRow;
  if (row) {
    version = static_cast<int>(host.put(over, at));
  } else {
    host.ask_host(over, at);
  }
  host.publish(1);
  host.bar(2, !too_early);
  host.adopt(over, a);
  if (together) host.erase(over);
  host.publish(3);
  if (!together) {
    host.erase(over);
    host.publish(4);
  }
  host.put(b, at);
  host.publish();
  lookups = {{a, {}, old_version, phases({0, 1})},
             {a, {1}, version, phases({1, 2, 3})},
             {a, {}, version, phases({3, 4})},
             {b, {}}};
}

// A difference goes without being taken over, and another gets its number.
inline void drop(Host& host, std::vector<Lookup>& lookups) {
  const Owner a = host.owner(0, 1), over = Host::under(a, 1);
  const auto version = static_cast<int>(host.put(a, kP0));
  host.start();
  const auto first = static_cast<int>(host.put(over, kQ0));
  host.publish(1);
  host.bar(2, host.fault() != Fault::kDroppedUnderReaders);
  host.erase(over);
  host.publish(3);
  const auto second = static_cast<int>(host.put(over, kQ0));
  host.publish(4);
  lookups = {{a, {}, version}, {a, {1}, first, phases({1})}, {a, {1}, second, phases({4})}};
}

// Others come, go and move beside an entry of a difference. That stays where it is: moved, it would be missed, and
// the base's found.
inline void stays(Host& host, std::vector<Lookup>& lookups) {
  const Owner a = host.owner(0, 1), b = host.owner(1), over = Host::under(a, 1);
  host.put(a, kP0);
  host.put(b, kQ1);
  const auto version = static_cast<int>(host.put(over, kQ0));
  host.start();
  host.move(host.fault() == Fault::kOverlayMoved ? over : b, kP1);
  host.publish();
  host.update(b);
  host.publish();
  lookups = {{a, {1}, version}, {b, {}}};
}

// An id of a difference comes into the base: a set after its entry of the difference.
inline void admission(Host& host, std::vector<Lookup>& lookups) {
  const Owner a = host.owner(0, 1), over = Host::under(a, 1);
  host.start();
  const auto version = static_cast<int>(host.put(over, kQ0));
  if (host.fault() != Fault::kAdmittedWithOverlay) host.publish();
  const auto base = static_cast<int>(host.put(a, kP0));
  host.publish();
  lookups = {{a, {1}, version}, {a, {}, base}};
}

// The base takes a row over and gets another, while the entry of the difference still names the first one's slot.
inline void shared_slot(Host& host, std::vector<Lookup>& lookups) {
  const Owner a = host.owner(0, 1), b = host.owner(0), over = Host::under(a, 1);
  host.put(a, kP0);
  const auto version = static_cast<int>(host.put(over, kQ0));
  host.start();
  host.adopt(over, a);
  host.publish();
  host.update(a);
  host.publish();
  host.put(b, kP1);
  host.publish();
  lookups = {{a, {1}, version}, {b, {}}};
}

// Somebody looks from another GPU, along the chain that it has of this one: for an owner that gets another row, then
// loses its place, and for the entry of a difference over it, which stays.
inline void across(Host& host, std::vector<Lookup>& lookups) {
  const Owner a = host.owner(0, 1), b = host.owner(0), over = Host::under(a, 1);
  host.put(a, kP0);
  const auto version = static_cast<int>(host.put(over, kQ0));
  host.start();
  host.update(a);
  host.publish();
  for (int set = 0; set < 2; ++set) {
    host.erase(set % 2 == 0 ? a : b);
    host.put(set % 2 == 0 ? b : a, kP0);
    host.publish();
  }
  lookups = {{a, {}, kAnyCurrent, ~0u, true}, {b, {}, kAnyCurrent, ~0u, true}, {a, {1}, version, ~0u, true}};
}

inline const std::vector<Case> kCases{
    {"updates", updates},
    {"replacements", replacements},
    {"trades", trades},
    {"erasures", erasures},
    {"moves", moves},
    {"tables", tables},
    {"settle", [](Host& host, std::vector<Lookup>& lookups) { settle(host, lookups, kP1, true); }},
    {"settle, second bucket", [](Host& host, std::vector<Lookup>& lookups) { settle(host, lookups, kQ0, true); }},
    {"settle, removed row", [](Host& host, std::vector<Lookup>& lookups) { settle(host, lookups, kQ0, false); }},
    {"drop", drop},
    {"stays", stays},
    {"admission", admission},
    {"shared slot", shared_slot},
    {"across", across},
};

// Random sets over both buckets, or a part of them: owners of two tables that come, change, move and go, while a
// difference comes, is taken over by the base, and goes. Rows of its owners do not change meanwhile.
class RandomSets {
 public:
  RandomSets(Host& host, std::mt19937& random, std::vector<int> places, int owners, int differing)
      : host_(host), random_(random), places_(std::move(places)) {
    const auto bucket = [&] { return static_cast<int>(random_() % kBuckets); };
    for (int i = 0; i < owners; ++i) {
      const int home = bucket(), virtual_home = bucket();
      owners_.push_back(host_.owner(home, virtual_home, random_() % kBaseTables));
    }
    differing_ = static_cast<std::size_t>(differing);
    for (std::size_t i = 0; i < differing_; ++i) versions_.push_back(put(owners_[i]));
    host_.start();
  }

  // The difference is there from set `begin`, and the base's from set `end` on; its entries go in the one after. Who
  // asked for it until then has left by the grace of one set more: only then may a row be another than that
  // snapshot's.
  void publish(int sets, int begin, int end) {
    for (int set = 0; set < sets; ++set) {
      change(begin <= set && set <= end + 2);
      if (set == begin) bring();
      if (set == end) {
        host_.bar(2, host_.fault() != Fault::kBaseSwappedUnderReaders);
        for (const Entry& entry : entries_) {
          if (host_.where(entry.owner) >= 0) host_.adopt(entry.over, entry.owner);
        }
      }
      if (set == end + 1) {
        for (const Entry& entry : entries_) host_.erase(entry.over);
      }
      host_.publish(set == begin ? 1 : set == end ? 3 : set == end + 1 ? 4 : -1);
    }
  }
  std::vector<Lookup> lookups() const {
    std::vector<Lookup> all;
    for (std::size_t i = differing_; i < owners_.size(); ++i) {
      all.push_back({owners_[i], {}});
      all.push_back({owners_[i], {1}, kAnyCurrent, phases({1, 2, 3})});
    }
    for (std::size_t i = 0; i < differing_; ++i) {
      if (versions_[i] != kNoRow) all.push_back({owners_[i], {}, versions_[i], phases({0, 1})});
      all.push_back({owners_[i], {}, kAnyCurrent, phases({4})});
    }
    for (const Entry& entry : entries_) {
      all.push_back({entry.owner, {1}, entry.version, phases({1, 2, 3})});
      all.push_back({entry.owner, {}, entry.version, phases({3})});
    }
    return all;
  }

 private:
  struct Entry {
    Owner owner, over;
    int version;
  };

  int free_place() {
    std::vector<int> free;
    for (const int place : places_) {
      if (host_.is_free(place)) free.push_back(place);
    }
    return free.empty() ? -1 : free[random_() % free.size()];
  }
  int put(const Owner& owner) {
    const int place = free_place();
    return place < 0 ? kNoRow : static_cast<int>(host_.put(owner, place));
  }
  void change(bool difference) {
    for (std::size_t i = 0; i < owners_.size(); ++i) {
      const Owner& owner = owners_[i];
      const bool fixed = i < differing_ && (difference || entries_.empty());
      if (host_.where(owner) < 0) {
        if (!fixed && random_() % 2 == 0) put(owner);
        continue;
      }
      switch (random_() % 8) {
        case 0:
        case 1: host_.erase(owner); break;
        case 2:
          if (const int place = free_place(); place >= 0) host_.move(owner, place);
          break;
        case 3:
        case 4:
          if (!fixed) host_.update(owner);
          break;
        default: break;
      }
    }
  }
  // An owner that there is no place for leaves the base.
  void bring() {
    for (std::size_t i = 0; i < differing_; ++i) {
      const Owner over = Host::under(owners_[i], 1);
      if (host_.where(owners_[i]) < 0) continue;
      const int place = free_place();
      if (place < 0) {
        host_.erase(owners_[i]);
      } else if (random_() % 4 == 0) {
        host_.ask_host(over, place);
        entries_.push_back({owners_[i], over, kNoRow});
      } else {
        entries_.push_back({owners_[i], over, static_cast<int>(host_.put(over, place))});
      }
    }
  }

  Host& host_;
  std::mt19937& random_;
  std::vector<int> places_;
  std::vector<Owner> owners_;
  std::size_t differing_ = 0;
  std::vector<int> versions_;
  std::vector<Entry> entries_;
};

}  // namespace publish_model
