#include "mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <system_error>

#include "callers.h"
#include "grpc_message.h"

namespace emberline::front {

Mailbox::Mailbox() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

Mailbox::~Mailbox() { ::close(wake_); }

void Mailbox::post(std::vector<Letter> letters) {
  if (letters.empty()) return;
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = letters_.empty();
    std::move(letters.begin(), letters.end(), std::back_inserter(letters_));
  }
  if (was_empty) wake();
}

std::vector<Mailbox::Letter> Mailbox::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(letters_, {});
}

void Mailbox::wake() {
  const std::uint64_t one = 1;
  // It cannot fail but by being full, which wakes as well.
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

namespace {

using Posts = std::vector<std::pair<Mailbox*, std::vector<Mailbox::Letter>>>;

// The letters for the server of a request; a batch has requests of one or two servers.
std::vector<Mailbox::Letter>& letters_for(Posts& posts, const InferRequest& request) {
  for (auto& [mailbox, letters] : posts) {
    if (mailbox == request.mailbox.get()) return letters;
  }
  return posts.emplace_back(request.mailbox.get(), std::vector<Mailbox::Letter>()).second;
}

}  // namespace

RequestNote note_of(const InferRequest& request) {
  RequestNote note;
  note.is_grpc = request.encoding != Encoding::kHttp;
  note.is_native = true;
  note.model = request.model->name();
  note.id = request.id;
  note.header_id = request.text(request.header_id);
  note.traceparent = request.text(request.traceparent);
  note.address = request.address;
  note.principal = request.caller == nullptr ? kAnonymous : std::string_view(request.caller->name);
  note.rows = request.rows;
  note.request_bytes = static_cast<std::int64_t>(request.bytes.size());
  note.arrived_ns = request.arrived_ns;
  note.queued_ns = request.queued_ns;
  note.ended_ns = now_ns();
  return note;
}

std::int64_t RequestBatch::rows() const {
  std::int64_t rows = 0;
  for (const auto& request : requests_) rows += request->rows;
  return rows;
}

void RequestBatch::respond(const std::vector<const char*>& outputs, const AnswerHead& head,
                           const BatchStages* stages) const {
  const std::string date = date_line();
  Posts posts;
  std::vector<const char*> rows = outputs;
  for (const auto& request : requests_) {
    Mailbox::Letter letter{
        Mailbox::Letter::Kind::kRespond, request->ticket, "", nullptr, request->stream, request->number};
    const Model& model = *request->model;
    if (request->encoding == Encoding::kHttp) {
      model.write(letter.bytes, *request, rows, head, date, request->mailbox->is_retiring.load());
    } else {
      write_message(letter.bytes, *request, rows, head);
    }
    if (stages != nullptr && request->mailbox->is_observed()) {
      RequestNote note = note_of(*request);
      note.version = head.plain_version;
      note.snapshot = head.snapshot;
      note.status = request->encoding == Encoding::kHttp ? 200 : 0;
      note.response_bytes = static_cast<std::int64_t>(letter.bytes.size());
      note.stages = stages;
      request->mailbox->observer->note(note);
    }
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] += model.outputs()[i].row_bytes * request->rows;
    letters_for(posts, *request).push_back(std::move(letter));
  }
  for (auto& [mailbox, letters] : posts) mailbox->post(std::move(letters));
}

void RequestBatch::hand_over() const { post(Mailbox::Letter::Kind::kHandOver); }

void RequestBatch::expire() const { post(Mailbox::Letter::Kind::kExpire); }

void RequestBatch::post(Mailbox::Letter::Kind kind) const {
  Posts posts;
  for (const auto& request : requests_) {
    letters_for(posts, *request).push_back({kind, request->ticket, "", request, request->stream, request->number});
  }
  for (auto& [mailbox, letters] : posts) mailbox->post(std::move(letters));
}

std::string date_line() {
  static std::mutex mutex;
  static std::time_t made = -1;
  static std::string line;
  const std::time_t now = std::time(nullptr);
  const std::lock_guard lock(mutex);
  if (now != made) {
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                              "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    char text[64];
    std::snprintf(text, sizeof text, "date: %s, %02d %s %04d %02d:%02d:%02d GMT\r\n", kDays[parts.tm_wday],
                  parts.tm_mday, kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour, parts.tm_min,
                  parts.tm_sec);
    line = text;
    made = now;
  }
  return line;
}

}  // namespace emberline::front
