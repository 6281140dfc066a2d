#include "blake2b.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace emberline::front {

namespace {

constexpr std::size_t kBlockBytes = 128;

// Section 2.6: the initialisation vector.
constexpr std::array<std::uint64_t, 8> kStart = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                                                 0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
                                                 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

// Section 2.7: the message schedule; rounds 10 and 11 are as 0 and 1.
constexpr std::uint8_t kSchedule[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

using Words = std::array<std::uint64_t, 16>;

void mix(Words& v, std::size_t a, std::size_t b, std::size_t c, std::size_t d, std::uint64_t x, std::uint64_t y) {
  v[a] += v[b] + x;
  v[d] = std::rotr(v[d] ^ v[a], 32);
  v[c] += v[d];
  v[b] = std::rotr(v[b] ^ v[c], 24);
  v[a] += v[b] + y;
  v[d] = std::rotr(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = std::rotr(v[b] ^ v[c], 63);
}

// Section 3.2: the compression function. The bytes of a block make little-endian words.
void compress(std::array<std::uint64_t, 8>& state, const char* block, std::uint64_t bytes, bool is_last) {
  Words message{}, v{};
  std::memcpy(message.data(), block, kBlockBytes);
  std::copy(state.begin(), state.end(), v.begin());
  std::copy(kStart.begin(), kStart.end(), v.begin() + 8);
  v[12] ^= bytes;
  if (is_last) v[14] = ~v[14];
  for (std::size_t round = 0; round < 12; ++round) {
    const auto& at = kSchedule[round % 10];
    for (std::size_t i = 0; i < 4; ++i) {
      mix(v, i, i + 4, i + 8, i + 12, message[at[2 * i]], message[at[2 * i + 1]]);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      mix(v, i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12, message[at[2 * i + 8]], message[at[2 * i + 9]]);
    }
  }
  for (std::size_t i = 0; i < 8; ++i) state[i] ^= v[i] ^ v[i + 8];
}

// Returns the state of which the digest of so many bytes is the beginning.
std::array<std::uint64_t, 8> state_of(std::string_view key, std::string_view message, std::uint64_t digest_bytes) {
  std::array<std::uint64_t, 8> state = kStart;
  state[0] ^= 0x01010000 ^ static_cast<std::uint64_t>(key.size()) << 8 ^ digest_bytes;
  char block[kBlockBytes] = {};
  std::copy(key.begin(), key.end(), block);
  std::uint64_t bytes = kBlockBytes;
  compress(state, block, bytes, message.empty());
  while (!message.empty()) {
    const std::size_t size = std::min(message.size(), kBlockBytes);
    std::memset(block, 0, sizeof block);
    std::copy(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(size), block);
    message.remove_prefix(size);
    bytes += size;
    compress(state, block, bytes, message.empty());
  }
  return state;
}

}  // namespace

std::uint64_t blake2b_64(std::string_view key, std::string_view message) {
  const auto state = state_of(key, message, 8);
  std::uint64_t digest = 0;
  for (int byte = 0; byte < 8; ++byte) digest = digest << 8 | (state[0] >> (8 * byte) & 0xff);
  return digest;
}

std::array<std::uint64_t, 4> blake2b_256(std::string_view key, std::string_view message) {
  const auto state = state_of(key, message, 32);
  return {state[0], state[1], state[2], state[3]};
}

}  // namespace emberline::front
