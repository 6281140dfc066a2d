// How answers get from a session to the thread of the server that read the requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "columns.h"
#include "model.h"
#include "observer.h"

namespace emberline::front {

// What other threads have for a server. It outlives the server, whose thread takes what is in it.
class Mailbox {
 public:
  struct Letter {
    enum class Kind { kRespond, kHandOver, kExpire, kGiveBack, kClosed } kind;
    std::uint64_t ticket = 0;
    std::string bytes;
    std::shared_ptr<InferRequest> request;
    std::int32_t stream = 0;
    std::uint32_t number = 0;
  };

  // Raises std::system_error.
  Mailbox();
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  void post(std::vector<Letter> letters);
  std::vector<Letter> take();
  void wake();
  // An eventfd that is readable when there is something to take, or `wake` was called.
  int descriptor() const { return wake_; }

  // Whether each connection ends with its next answer, and whether none is accepted any more.
  std::atomic<bool> is_retiring{false}, is_draining{false};
  // Whether requests that end are noted.
  bool is_observed() const { return observer != nullptr && observer->is_on(); }
  // Null where nobody asks for them. Set before the server's thread starts.
  std::shared_ptr<Observer> observer;

 private:
  int wake_ = -1;
  std::mutex mutex_;
  std::vector<Letter> letters_;
};

// Requests that can be joined, which a session answers together.
class RequestBatch {
 public:
  explicit RequestBatch(InferRequests requests) : requests_(std::move(requests)) {}

  const InferRequests& requests() const { return requests_; }
  std::int64_t rows() const;
  // Sends the responses. outputs: for each output of the model the first byte of the batch's rows; they are copied.
  // stages: of the batch, for whoever observes its requests; null where nobody does.
  void respond(const std::vector<const char*>& outputs, const AnswerHead& head,
               const BatchStages* stages = nullptr) const;
  // Has the Python path answer each request from its beginning.
  void hand_over() const;
  // Says that the requests waited for too long.
  void expire() const;

 private:
  void post(Mailbox::Letter::Kind kind) const;

  InferRequests requests_;
};

// What is known of a request that ends now, but for how. Views the request.
RequestNote note_of(const InferRequest& request);

// The header Date with its line's end, made once a second.
std::string date_line();

}  // namespace emberline::front
