#include "cache/cache_table.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "cache/cache_pipeline.h"
#include "rows/kernels.h"
#include "table/epoch.h"

namespace emberline {
namespace {

// Ids per reader section: short, so that a writer who waits for readers waits for microseconds.
constexpr std::size_t kWindow = 1024;
constexpr std::size_t kEncodeRows = 1024;  // encoded at a time

// write(start, count, encoded rows), piece by piece where the rows come as float32 of another type.
template <class Write>
void encoded_pieces(RowFormat format, RowInput rows, std::size_t n, Write write) {
  if (rows.encoded != nullptr || format.type == RowType::kFp32) {
    write(std::size_t{0}, n, rows.encoded != nullptr ? rows.encoded : reinterpret_cast<const char*>(rows.floats));
    return;
  }
  check_encodable(format, rows.floats, n);
  std::vector<char> encoded(std::min(n, kEncodeRows) * format.bytes());
  for (std::size_t start = 0; start < n; start += kEncodeRows) {
    const std::size_t count = std::min(kEncodeRows, n - start);
    encode_rows(format, rows.floats + start * format.dim, count, encoded.data());
    write(start, count, encoded.data());
  }
}

}  // namespace

CacheTable::CacheTable(Cache& cache, std::uint32_t table, RowFormat format)
    : cache_(cache), table_(table), format_(format), salt_(table_salt(table)) {
  if (table >= cache.tables()) {
    throw std::invalid_argument("table: expected a number below " + std::to_string(cache.tables()) + ", got " +
                                std::to_string(table));
  }
  if (format.dim < 1 || format.bytes() != cache.row_bytes()) {
    throw std::invalid_argument("dim: rows of dim " + std::to_string(format.dim) + " as " + row_type_name(format.type) +
                                " take " + std::to_string(format.bytes()) + " bytes, the cache has row_bytes " +
                                std::to_string(cache.row_bytes()));
  }
}

std::size_t CacheTable::find(const std::int64_t* ids, std::size_t n, float* out, std::uint8_t* found) const {
  const char* rows[kWindow];
  const RowKernels::Gather gather = row_kernels().gather[static_cast<int>(format_.type)];
  std::size_t hits = 0;
  for (std::size_t start = 0; start < n; start += kWindow) {
    const std::size_t count = std::min(kWindow, n - start);
    const ReaderSection section;
    CachePipeline pipeline(*this, ids + start, count, rows);
    for (std::size_t block = 0; block < count; block += RowPipeline::kBlock) {
      const std::size_t end = std::min(count, block + RowPipeline::kBlock);
      pipeline.advance(end);
      for (std::size_t i = block; i < end; ++i) {
        float* to = out + (start + i) * format_.dim;
        const bool hit = rows[i] != nullptr;
        if (hit) {
          gather(rows + i, 1, format_.dim, to);
        } else {
          std::memset(to, 0, format_.dim * sizeof(float));
        }
        found[start + i] = hit;
        hits += hit;
      }
    }
  }
  return hits;
}

void CacheTable::insert_or_assign(const std::int64_t* ids, std::size_t n, RowInput rows, const std::uint8_t* freq) {
  encoded_pieces(format_, rows, n, [&](std::size_t start, std::size_t count, const char* encoded) {
    cache_.insert_or_assign(table_, ids + start, count, encoded, freq != nullptr ? freq + start : nullptr);
  });
}

std::size_t CacheTable::insert_and_evict(const std::int64_t* ids, std::size_t n, RowInput rows,
                                         const std::uint8_t* freq) {
  std::size_t admitted = 0;
  encoded_pieces(format_, rows, n, [&](std::size_t start, std::size_t count, const char* encoded) {
    admitted += cache_.insert_and_evict(table_, ids + start, count, encoded, freq != nullptr ? freq + start : nullptr);
  });
  return admitted;
}

std::size_t CacheTable::assign(const std::int64_t* ids, std::size_t n, RowInput rows) {
  std::size_t assigned = 0;
  encoded_pieces(format_, rows, n, [&](std::size_t start, std::size_t count, const char* encoded) {
    assigned += cache_.assign(table_, ids + start, count, encoded);
  });
  return assigned;
}

}  // namespace emberline
