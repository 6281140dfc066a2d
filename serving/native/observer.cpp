#include "observer.h"

#include <array>
#include <chrono>
#include <random>
#include <utility>

namespace emberline::front {

namespace {

// With so much noted, it is taken before the timeout.
constexpr std::size_t kManyLineBytes = 512 << 10;

std::mt19937_64& generator() {
  thread_local std::mt19937_64 made(std::random_device{}());
  return made;
}

bool chance(double share) { return std::uniform_real_distribution<>(0.0, 1.0)(generator()) < share; }

std::string random_trace_id() {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string id;
  do {
    id.clear();
    for (int half = 0; half < 2; ++half) {
      std::uint64_t bits = generator()();
      for (int digit = 0; digit < 16; ++digit, bits >>= 4) id += kHex[bits & 15];
    }
  } while (id.find_first_not_of('0') == id.npos);
  return id;
}

KeptRequest copy_of(const RequestNote& note) {
  KeptRequest kept;
  kept.is_grpc = note.is_grpc;
  kept.is_native = note.is_native;
  kept.call = note.call;
  kept.model = note.model;
  kept.version = note.version;
  kept.snapshot = note.snapshot;
  kept.id = note.id;
  kept.header_id = note.header_id;
  kept.address = note.address;
  kept.principal = note.principal;
  kept.error = note.error;
  kept.status = note.status;
  kept.rows = note.rows;
  kept.request_bytes = note.request_bytes;
  kept.response_bytes = note.response_bytes;
  kept.arrived_ns = note.arrived_ns;
  kept.queued_ns = note.queued_ns;
  kept.ended_ns = note.ended_ns;
  kept.has_stages = note.stages != nullptr;
  if (kept.has_stages) kept.stages = *note.stages;
  return kept;
}

bool is_hex(std::string_view text) { return text.find_first_not_of("0123456789abcdef") == text.npos; }

}  // namespace

void Observer::set(const ObserverSettings& settings) {
  const std::lock_guard lock(mutex_);
  settings_ = settings;
  is_on_ = settings.has_lines || settings.slow_ns > 0 || settings.is_tracing || settings.keeps_all;
}

void Observer::note(const RequestNote& note) {
  TraceParent parent;
  const bool has_parent = !note.traceparent.empty() && read_traceparent(note.traceparent, parent);
  ObserverSettings settings;
  {
    const std::lock_guard lock(mutex_);
    settings = settings_;
  }
  const bool is_sampled = settings.is_tracing && note.is_traceable &&
                          (has_parent ? parent.is_sampled : settings.sampling > 0.0 && chance(settings.sampling));
  const bool is_slow = settings.slow_ns > 0 && note.ended_ns - note.arrived_ns > settings.slow_ns;
  std::string trace_id(parent.trace_id);
  if (is_sampled && !has_parent) trace_id = random_trace_id();
  std::string line;
  if (settings.has_lines) append_line(line, note, trace_id, settings.is_json);
  const bool is_kept = is_slow || is_sampled || settings.keeps_all;
  KeptRequest kept;
  if (is_kept) {
    kept = copy_of(note);
    kept.is_slow = is_slow;
    kept.is_sampled = is_sampled;
    kept.trace_id = std::move(trace_id);
    kept.parent_id = parent.span_id;
  }
  bool is_much = false;
  {
    const std::lock_guard lock(mutex_);
    const std::size_t before = lines_.size(), kept_before = kept_.size();
    if (lines_.size() + line.size() > max_line_bytes_) {
      dropped_lines_.fetch_add(1, std::memory_order_relaxed);
    } else {
      lines_ += line;
    }
    if (is_kept && kept_.size() >= max_kept_) {
      dropped_requests_.fetch_add(1, std::memory_order_relaxed);
    } else if (is_kept) {
      kept_.push_back(std::move(kept));
    }
    is_much = (before < kManyLineBytes && lines_.size() >= kManyLineBytes) ||
              (kept_before < max_kept_ / 2 && kept_.size() >= max_kept_ / 2);
  }
  if (is_much) changed_.notify_one();
}

void Observer::take(std::int64_t timeout_ns, std::string& lines, std::vector<KeptRequest>& kept) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] {
    return is_stopping_ || lines_.size() >= kManyLineBytes || kept_.size() >= max_kept_ / 2;
  });
  lines.clear();
  lines.swap(lines_);  // each has its memory already the next time
  kept = std::exchange(kept_, {});
}

void Observer::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
}

bool read_traceparent(std::string_view text, TraceParent& parent) {
  constexpr std::size_t kTrace = 3, kSpan = 36, kFlags = 53, kEnd = 55;
  if (text.size() < kEnd || text[kTrace - 1] != '-' || text[kSpan - 1] != '-' || text[kFlags - 1] != '-') return false;
  const std::string_view version = text.substr(0, 2), trace = text.substr(kTrace, 32), span = text.substr(kSpan, 16),
                         flags = text.substr(kFlags, 2);
  if (!is_hex(version) || !is_hex(trace) || !is_hex(span) || !is_hex(flags) || version == "ff") return false;
  // A later version may have more, after another dash.
  if (text.size() > kEnd && (version == "00" || text[kEnd] != '-')) return false;
  if (trace.find_first_not_of('0') == trace.npos || span.find_first_not_of('0') == span.npos) return false;
  parent.trace_id = trace;
  parent.span_id = span;
  const char last = flags[1];
  parent.is_sampled = ((last <= '9' ? last - '0' : last - 'a' + 10) & 1) != 0;
  return true;
}

}  // namespace emberline::front
