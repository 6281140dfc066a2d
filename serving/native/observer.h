// Takes note of requests that have ended: a line for the access log, and a copy for whoever reads slow or traced ones.
//
// Requests are noted on the threads that answer them, at the cost of a copy into bounded memory. One thread of Python
// takes what was noted, a few times a second, and does the rest. What finds no room is dropped and counted.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace emberline::front {

// When the stages of a batch ended, on CLOCK_MONOTONIC in nanoseconds, 0 for what is not known; and what it was.
struct BatchStages {
  // The session that scored it.
  std::string session;
  // A session took it from the queue; it had its columns and a core; its features, its rows and its scores were there.
  std::int64_t taken_ns = 0, begun_ns = 0, features_ns = 0, lookup_ns = 0, graph_ns = 0;
  // How long the lookup waited for rows of the SSD.
  std::int64_t read_ns = 0;
  std::int64_t rows = 0, requests = 0;
  // Ids by the tier that had their rows.
  std::int64_t hbm = 0, overlay = 0, dram = 0, ssd = 0, absent = 0, unresolved = 0;
};

// A request that has ended. Views what its caller has.
struct RequestNote {
  bool is_grpc = false;
  // Whether native code read it, and answers it on the thread of its session.
  bool is_native = false;
  // What was asked: infer, predict, or another call.
  std::string_view call = "infer";
  std::string_view model, version, snapshot, id, header_id, traceparent, address, principal, error;
  // Of HTTP, or of gRPC.
  int status = 0;
  std::int64_t rows = 0, request_bytes = 0, response_bytes = 0;
  // On CLOCK_MONOTONIC. queued_ns: 0 for one that came into no queue.
  std::int64_t arrived_ns = 0, queued_ns = 0, ended_ns = 0;
  const BatchStages* stages = nullptr;
  // Whether it may be traced: not a probe, and not the metrics page.
  bool is_traceable = true;
};

// A note that was kept, with what its views were.
struct KeptRequest {
  bool is_grpc = false, is_native = false, is_slow = false, is_sampled = false;
  std::string call, model, version, snapshot, id, header_id, address, principal, error;
  // 32 and 16 hex digits; no parent where the trace begins here.
  std::string trace_id, parent_id;
  int status = 0;
  std::int64_t rows = 0, request_bytes = 0, response_bytes = 0, arrived_ns = 0, queued_ns = 0, ended_ns = 0;
  bool has_stages = false;
  BatchStages stages;
};

struct ObserverSettings {
  // Whether each request gets a line, and whether that is JSON.
  bool has_lines = false, is_json = true;
  // A request that took longer is kept; 0: none for that reason.
  std::int64_t slow_ns = 0;
  // Whether requests are traced, and the share of those whose caller does not decide it.
  bool is_tracing = false;
  double sampling = 0.0;
  // Keeps every request, as long as there is room.
  bool keeps_all = false;
};

// Thread-safe.
class Observer {
 public:
  // max_line_bytes, max_kept: what waits to be taken at most.
  Observer(std::size_t max_line_bytes, std::size_t max_kept) : max_line_bytes_(max_line_bytes), max_kept_(max_kept) {}

  void set(const ObserverSettings& settings);
  // Whether requests need to be noted.
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
  void note(const RequestNote& note);
  // Waits for much to be noted, for `stop`, or for the timeout; moves what there is. Further lines are written into the
  // memory of `lines`, so that of the last call is best.
  void take(std::int64_t timeout_ns, std::string& lines, std::vector<KeptRequest>& kept);
  // Ends the present and every later `take` at once.
  void stop();
  // What was dropped for want of room, since the start.
  std::int64_t dropped_lines() const { return dropped_lines_.load(std::memory_order_relaxed); }
  std::int64_t dropped_requests() const { return dropped_requests_.load(std::memory_order_relaxed); }

 private:
  const std::size_t max_line_bytes_, max_kept_;
  std::atomic<bool> is_on_{false};
  std::atomic<std::int64_t> dropped_lines_{0}, dropped_requests_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  ObserverSettings settings_;
  std::string lines_;
  std::vector<KeptRequest> kept_;
  bool is_stopping_ = false;
};

// The trace that a caller's traceparent names, as W3C's trace context has it: version, trace, span and flags.
struct TraceParent {
  std::string_view trace_id, span_id;
  bool is_sampled = false;
};

// Returns false where the text is none.
bool read_traceparent(std::string_view text, TraceParent& parent);

// The line of the access log for a note, with its end.
void append_line(std::string& out, const RequestNote& note, std::string_view trace_id, bool is_json);

}  // namespace emberline::front
