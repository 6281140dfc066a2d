// Goal: the hash is the documented one, bit by bit, and length-prefixed bytes are read within their bounds.
#include "check.h"

#include <cstring>
#include <memory>
#include <string>

#include "features/column.h"
#include "features/hash.h"
#include "features/wire_bytes.h"

using namespace emberline::features;

// The numbers come from the plain Python hash of tests/unit/features/reference.py.
TEST(hashes_are_the_documented_numbers) {
  const std::uint64_t plain = hash_key(0, ""), salted = hash_key(1, "s");
  CHECK(to_id(hash_int(0, plain), 0) == 2343547176215484546);
  CHECK(to_id(hash_int(1, plain), 0) == 8217840816304541083);
  CHECK(to_id(hash_int(-1, plain), 0) == 1741238779798006877);
  CHECK(to_id(hash_bytes("", salted), 0) == 908741466691156560);
  CHECK(to_id(hash_bytes("a", salted), 0) == 5261950785646933645);
  CHECK(to_id(hash_bytes("12345678", salted), 0) == 6840451090741147891);
  CHECK(to_id(hash_bytes("123456789", salted), 0) == 2069338291818849330);
  CHECK(to_id(hash_bytes("a", plain), 1000) == 71);
  CHECK(to_id(hash_bytes("b", plain), 1000) == 676);
}

TEST(ids_of_buckets_stay_inside_them) {
  for (const std::uint64_t buckets : {std::uint64_t{1}, std::uint64_t{7}, std::uint64_t{1} << 62}) {
    CHECK(to_id(~std::uint64_t{0}, buckets) == static_cast<std::int64_t>(buckets) - 1);
    CHECK(to_id(0, buckets) == 0);
  }
  CHECK(to_id(~std::uint64_t{0}, 0) >= 0);
}

TEST(trailing_zero_bytes_change_the_hash) {
  const std::uint64_t key = hash_key(0, "");
  CHECK(hash_bytes(std::string("a", 1), key) != hash_bytes(std::string("a\0", 2), key));
  CHECK(hash_bytes(std::string(8, '\0'), key) != hash_bytes("", key));
}

namespace {

std::string element(const std::string& bytes) {
  const auto size = static_cast<std::uint32_t>(bytes.size());
  std::string out(4, '\0');
  std::memcpy(out.data(), &size, 4);
  return out + bytes;
}

// A heap copy of the exact size, so that a read past its end is seen by AddressSanitizer.
ByteRanges split(const std::string& bytes, std::int64_t count) {
  const std::unique_ptr<char[]> exact(new char[bytes.size()]);
  std::memcpy(exact.get(), bytes.data(), bytes.size());
  return split_wire_bytes(exact.get(), static_cast<std::int64_t>(bytes.size()), count, "x");
}

}  // namespace

TEST(wire_bytes_are_split) {
  const std::string wire = element("ab") + element("") + element("cde");
  const ByteRanges ranges = split(wire, 3);
  CHECK((ranges.starts == std::vector<std::int64_t>{4, 10, 14}));
  CHECK((ranges.ends == std::vector<std::int64_t>{6, 10, 17}));
  CHECK(split("", 0).starts.empty());
}

TEST(wire_bytes_that_do_not_add_up_are_refused) {
  const std::string wire = element("ab") + element("cde");
  CHECK_THROWS(split(wire, 1), InvalidInput);                          // left over
  CHECK_THROWS(split(wire, 3), InvalidInput);                          // one too few
  CHECK_THROWS(split(wire, -1), InvalidInput);
  CHECK_THROWS(split(wire, std::int64_t{1} << 60), InvalidInput);      // nothing of that size is allocated
  CHECK_THROWS(split("\xff\xff\xff\xff", 1), InvalidInput);            // claims 4 GiB
  for (std::size_t cut = 0; cut < wire.size(); ++cut) CHECK_THROWS(split(wire.substr(0, cut), 2), InvalidInput);
}

RUN_ALL_TESTS()
