// The set of changes: the difference between what was on the card and what is to be there.
#include <stdexcept>
#include <utility>

#include "card/card_cache.h"

namespace emberline {

// Of one position there is, with what was there:
//   the same owner, another word     emptied {the new word}: a row that changed, or flags
//   no owner any more                emptied {flags}; the id stays
//   another owner                    emptied {flags}, unless nobody was there; then its id and its word
// Vectors of the set before give their memory back: a first set is as large as the cache.
CardSet CardCache::take_set() {
  if (under_way_) throw std::runtime_error("take_set: the set before is not complete");
  CardSet set;
  set.rows.reserve(2 * staged_slots_.size());
  for (std::size_t number = 0; number < staged_slots_.size(); ++number) {
    set.rows.insert(set.rows.end(), {staged_slots_[number], static_cast<std::int64_t>(number)});
  }
  const auto add = [](std::vector<std::int64_t>& list, std::int64_t at, std::uint64_t value) {
    list.insert(list.end(), {at, static_cast<std::int64_t>(value)});
  };
  for (const Change& before : changes_) {
    const CardPlace where = lines_.place(before.position);
    const std::int64_t id_at = std::int64_t{before.position / kCacheLineIds} * (2 * kCacheLineIds) + where.at;
    const std::int64_t word_at = id_at + kCacheLineIds;
    std::int64_t& id = where.line->ids[where.at];
    const std::uint64_t now = card_word::published(where.word());
    const bool was = word::slot(before.word) != 0, is = word::slot(now) != 0;
    if (was && is && before.id == id && word::table(before.word) == word::table(now)) {
      if (now != before.word) add(set.emptied, word_at, now);
    } else if (is) {
      if (was) add(set.emptied, word_at, now & word::kOverflow);
      add(set.ids, id_at, static_cast<std::uint64_t>(id));
      add(set.words, word_at, now);
    } else {
      if (now != before.word) add(set.emptied, word_at, now);
      id = before.id;
    }
    where.line->words[where.at] &= ~(card_word::kTouched | card_word::kFresh);
  }
  set.staged = std::move(staged_);
  staged_ = std::vector<std::uint8_t>();
  staged_slots_ = std::vector<std::uint32_t>();
  taken_ = std::exchange(changes_, std::vector<Change>());
  slots_.take_set();
  under_way_ = true;
  fruitless_ = 0;
  return set;
}

void CardCache::complete_set() {
  if (!under_way_) throw std::runtime_error("complete_set: no set is taken");
  under_way_ = false;
  taken_ = std::vector<Change>();
  slots_.complete_set();
}

}  // namespace emberline
