// What the front reads of every request: plain JSON, and heads of ordinary requests.
#include <random>

#include "check.h"
#include "damage.h"
#include "http_head.h"
#include "json_scan.h"

using namespace emberline::front;

namespace {

const std::string kHead =
    "POST /v2/models/m/infer HTTP/1.1\r\nHost: 127.0.0.1:80\r\nContent-Length: 12\r\n"
    "Inference-Header-Content-Length: 4\r\n\r\n";

HeadState state(const std::string& bytes) {
  InferHead head;
  return read_head(bytes, head);
}

std::string with(const std::string& before, const std::string& after) {
  std::string made = kHead;
  const std::size_t at = made.find(before);
  CHECK(at != std::string::npos);
  return made.replace(at, before.size(), after);
}

}  // namespace

TEST(plain_json_is_read) {
  JsonScan scan(" { \"key\" : [ 12 , 0 ] , \"b\" : true } ");
  CHECK(scan.take('{') && scan.string() == "key" && scan.take(':') && scan.take('['));
  CHECK(scan.number() == 12 && scan.take(',') && scan.number() == 0 && scan.take(']') && scan.take(','));
  CHECK(scan.string() == "b" && scan.take(':') && scan.boolean() == true && scan.take('}') && scan.is_end());
}

TEST(json_that_readers_may_read_differently_is_not_taken) {
  CHECK(JsonScan("999999999999999999").number() == 999'999'999'999'999'999);
  // Under the undefined behaviour sanitizer, no number may overflow on the way.
  for (const char* text : {"9999999999999999999", "99999999999999999999", "999999999999999999a9"}) {
    CHECK(JsonScan(text).number().has_value() == (text[18] == 'a'));
  }
  for (const char* text : {"01", "-1", "1.0", "1e3", "1234567890123456789", "", "x", "+1", "1-"}) {
    CHECK(!JsonScan(text).number());
  }
  for (const char* text : {"\"a\\n\"", "\"a", "a", "\"\x01\"", "\"\x80\"", "\"\x7f\""}) CHECK(!JsonScan(text).string());
  for (const char* text : {"tr", "True", "1", ""}) CHECK(!JsonScan(text).boolean());
}

TEST(the_head_of_an_ordinary_request_is_read) {
  InferHead head;
  const std::string bytes = kHead + "rest";
  CHECK(read_head(bytes, head) == HeadState::kInference);
  CHECK(head.size == kHead.size() && head.content_length == 12 && head.json_length == 4 && !head.accepts_encoding);
  CHECK(head.path == "/v2/models/m/infer");
  CHECK(state(with("/m/", "/a.b-c_9/versions/12/")) == HeadState::kInference);
  CHECK(state(with("Host: 127.0.0.1:80", "hOST:localhost\r\nConnection: Keep-Alive\r\nX: \xc3")) == HeadState::kOther);
  CHECK(state(with("Host: 127.0.0.1:80", "hOST:localhost\r\nConnection: Keep-Alive\r\nX:")) == HeadState::kInference);
}

TEST(what_a_head_leaves_out_has_its_usual_meaning) {
  InferHead head;
  std::string bytes = with("Inference-Header-Content-Length: 4\r\n", "Accept-Encoding: identity\r\n");
  CHECK(read_head(bytes, head) == HeadState::kInference && head.json_length == 12 && !head.accepts_encoding);
  bytes = with("Inference-Header-Content-Length: 4\r\n", "Accept-Encoding: gzip\r\nAccept-Encoding: identity\r\n");
  CHECK(read_head(bytes, head) == HeadState::kInference && head.accepts_encoding);
}

TEST(the_routing_key_of_a_head_is_read) {
  InferHead head;
  std::string bytes = with("Host: ", "EMBERLINE-Routing-Key:  a key \r\nHost: ");
  CHECK(read_head(bytes, head) == HeadState::kInference && head.routing_key == "a key");
  bytes = with("Host: ", "Emberline-Routing-Key: " + std::string(1025, 'k') + "\r\nHost: ");
  CHECK(state(bytes) == HeadState::kOther);
}

TEST(the_id_and_the_trace_of_a_head_are_read) {
  InferHead head;
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  std::string bytes = with("Host: ", "X-Request-ID:  a/1=b \r\ntraceparent: " + trace + "\r\nHost: ");
  CHECK(read_head(bytes, head) == HeadState::kInference && head.request_id == "a/1=b" && head.traceparent == trace);
  for (const std::string odd : {"a\"b", "a\\b", "a b", ""}) {
    bytes = with("Host: ", "X-Request-Id: " + odd + "\r\nHost: ");
    CHECK(read_head(bytes, head) == HeadState::kInference && head.request_id.empty() && head.traceparent.empty());
  }
  bytes = with("Host: ", "X-Request-Id: " + std::string(257, 'x') + "\r\nHost: ");
  CHECK(read_head(bytes, head) == HeadState::kInference && head.request_id.empty());
  bytes = with("Host: ", "Traceparent: " + trace + "\r\nTraceparent: " + trace + "\r\nHost: ");
  CHECK(read_head(bytes, head) == HeadState::kInference && head.traceparent.empty());
}

TEST(the_affinity_of_a_head_is_for_load_balancers_alone) {
  CHECK(state(with("Host: ", "EMBERLINE-Affinity: user-7\r\nHost: ")) == HeadState::kInference);
  CHECK(state(with("Host: ", "Emberline-Affinitx: user-7\r\nHost: ")) == HeadState::kOther);
}

TEST(one_authorization_is_read_and_two_are_not) {
  CHECK(state(with("Host: ", "AUTHORIZATION: Bearer x\r\nHost: ")) == HeadState::kInference);
  CHECK(state(with("Host: ", "Authorization: \r\nHost: ")) == HeadState::kInference);
  CHECK(state(with("Host: ", "Authorization: x\r\nAuthorization: x\r\nHost: ")) == HeadState::kOther);
  CHECK(state(with("Host: ", "Emberline-abc: x\r\nHost: ")) == HeadState::kOther);
}

TEST(a_head_is_incomplete_until_its_end) {
  for (std::size_t size = 0; size < kHead.size(); ++size) CHECK(state(kHead.substr(0, size)) == HeadState::kIncomplete);
  CHECK(state(kHead + std::string(100, 'x')) == HeadState::kInference);
  CHECK(state("POST /v2/models/m/infer HTTP/1.1\r\nX: " + std::string(20000, 'x')) == HeadState::kOther);
  // Its end might never come.
  for (const char* end : {"\n", "\n\n", "\r\r", "\rX", "\r\n\n"}) {
    CHECK(state(std::string("POST /v2/models/m/infer HTTP/1.1\r\nHost: a") + end) == HeadState::kOther);
  }
}

TEST(heads_with_two_meanings_or_further_demands_are_not_taken) {
  for (const char* line : {"Host: b",
                           "Content-Length: 12",
                           "content-length: 13",
                           "Transfer-Encoding: chunked",
                           "transfer-encoding: x",
                           "Expect: 100-continue",
                           "Upgrade: h2c",
                           "Trailer: x",
                           "TE: trailers",
                           "Content-Encoding: gzip",
                           "Proxy-Connection: keep-alive",
                           "Connection: close",
                           "Connection: keep-alive, x",
                           "Authorization: Bearer x\r\nauthorization: Bearer x",
                           "Emberline-Min-Snapshot: 1.0",
                           "Emberline-Routing-Key: k\r\nemberline-routing-key: k",
                           "Inference-Header-Content-Length: 4",
                           " folded: x",
                           "\tfolded",
                           "no colon",
                           ": empty",
                           "a b: c",
                           "a : c",
                           "a: \x01",
                           "a: b\rc",
                           "a: b\nContent-Length: 3",
                           "a: \x7f"}) {
    CHECK(state(with("Host: 127.0.0.1:80", std::string("Host: a\r\n") + line)) == HeadState::kOther);
  }
  for (const auto& [before, after] : std::vector<std::pair<std::string, std::string>>{
           {"POST", "GET"},
           {"POST", "post"},
           {" HTTP/1.1", " HTTP/1.0"},
           {" HTTP/1.1", "  HTTP/1.1"},
           {"/infer", "/infer?x"},
           {"/infer", "/infer/"},
           {"/m/", "/m%2f/"},
           {"/m/", "//"},
           {"/m/", "/m/versions//"},
           {"/m/", "/m/versions/x/"},
           {"/infer", "/ready"},
           {"Length: 12", "Length: +12"},
           {"Length: 12", "Length: 12 12"},
           {"Length: 12", "Length:"},
           {"Length: 12", "Length: 1234567890123456789"},
           {"Length: 12", "Length: 0x12"},
           {"Length: 12\r\nInference-Header-Content-Length: 4", "Length: 0"},
           {"Length: 4", "Length: 0"},
           {"Length: 4", "Length: 13"},
           {"Host: 127.0.0.1:80\r\n", ""},
           {"127.0.0.1:80", "a b"},
           {"127.0.0.1:80", "a:b"},
           {"127.0.0.1:80", "[::1]"},
           {"Content-Length: 12\r\n", ""},
           {"Host", "Host\r\n"}}) {
    CHECK(state(with(before, after)) != HeadState::kInference);
  }
}

// Under the address sanitizer, no input may read beyond its end.
TEST(damaged_heads_are_read_within_their_bounds) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 100'000; ++i) {
    std::string head = kHead;
    damage(head, random);
    InferHead found;
    if (read_head(head, found) == HeadState::kInference) {
      CHECK(found.size <= head.size() && found.json_length <= found.content_length);
    }
  }
}

RUN_ALL_TESTS()
