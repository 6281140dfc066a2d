#include "pages/flights.h"

#include <utility>

namespace emberline::pages {

std::pair<Flights::Ref, bool> Flights::board(std::uint64_t file, std::uint64_t page) {
  Shard& shard = shard_of(file, page);
  const std::lock_guard lock(shard.mutex);
  Ref& flight = shard.under_way[{file, page}];
  const bool own = flight == nullptr;
  if (own) {
    flight = std::make_shared<Flight>();
    flight->file = file;
    flight->page = page;
  } else {
    ++flight->joined;
  }
  return {flight, own};
}

void Flights::land(const Ref& flight, const char* bytes, std::size_t n, std::exception_ptr failure) {
  Shard& shard = shard_of(flight->file, flight->page);
  {
    const std::lock_guard lock(shard.mutex);
    shard.under_way.erase({flight->file, flight->page});
    if (flight->joined == 0) {
      flight->landed = true;
      return;
    }
  }
  // No reader can join any more, and one that has joined reads this only when it has landed.
  flight->failure = std::move(failure);
  if (!flight->failure) flight->bytes.assign(bytes, bytes + n);
  {
    const std::lock_guard lock(shard.mutex);
    flight->landed = true;
  }
  shard.changed.notify_all();
}

bool Flights::wait(const Ref& flight, Deadline deadline) {
  Shard& shard = shard_of(flight->file, flight->page);
  std::unique_lock lock(shard.mutex);
  const auto landed = [&] { return flight->landed; };
  if (!deadline) {
    shard.changed.wait(lock, landed);
    return true;
  }
  return shard.changed.wait_until(lock, *deadline, landed);
}

bool Flights::landed(const Ref& flight) {
  const std::lock_guard lock(shard_of(flight->file, flight->page).mutex);
  return flight->landed;
}

}  // namespace emberline::pages
