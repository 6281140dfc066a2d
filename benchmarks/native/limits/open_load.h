// Sends HTTP requests at a fixed rate, whether or not earlier ones were answered, with little processor time of its
// own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace emberline::limits {

struct Sent {
  // Seconds from the start, the latency in milliseconds, and the HTTP status.
  double sent_s = 0, ms = 0;
  std::int32_t status = 0;
};

// Sends whole requests, in turn, to a port of this machine. rate: a second; 0 for as many as the connections take, each
// one request at a time. A request that finds no free connection waits for one.
// Raises std::runtime_error when a connection ends without an answer.
std::vector<Sent> open_load(int port, const std::vector<std::string>& requests, double rate, double seconds,
                            int connections);

}  // namespace emberline::limits
