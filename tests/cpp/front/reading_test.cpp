// What the front reads: plain JSON, heads of ordinary requests, and bodies of a model's requests.
#include <cstring>
#include <random>

#include "check.h"
#include "grpc_message.h"
#include "http_head.h"
#include "json_scan.h"
#include "model.h"

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

Model model() {
  return Model(1, {{"a", 0, 0b111, 1, true}, {"b", 2, 0b01000, 2, true}, {"c", 5, 0b111, 1, false}},
               {{"s", "{\"name\":\"s\",\"shape\":[", "],\"parameters\":{\"binary_data_size\":", 4, "FP32", {}}}, 8, "m",
               "\"m\"", 0, 0, false);
}

constexpr const char* kJson =
    R"({"inputs":[{"name":"a","shape":[2],"datatype":"INT64","parameters":{"binary_data_size":16}},)"
    R"({"name":"b","shape":[2,2],"datatype":"FP32","parameters":{"binary_data_size":16}}],)"
    R"("parameters":{"binary_data_output":true},"id":"x"})";

bool reads(const std::string& json, std::size_t tail, InferRequest* out = nullptr) {
  const Model made = model();
  InferRequest request;
  request.bytes = "head" + json + std::string(tail, '\1');
  const bool is_read = made.read(request, 4, static_cast<std::int64_t>(json.size()));
  if (out != nullptr) *out = std::move(request);
  return is_read;
}

std::string replaced(std::string text, const std::string& before, const std::string& after) {
  const std::size_t at = text.find(before);
  CHECK(at != std::string::npos);
  return text.replace(at, before.size(), after);
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
                           "Authorization: Bearer x",
                           "Emberline-Routing-Key: k",
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
  for (const auto& [before, after] :
       std::vector<std::pair<std::string, std::string>>{{"POST", "GET"},
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

TEST(a_plain_request_is_read) {
  InferRequest request;
  CHECK(reads(kJson, 32, &request));
  CHECK(request.rows == 2 && request.id == "x" && request.outputs.size() == 1 && request.columns.size() == 2);
  CHECK(request.columns[0].place == 0 && request.columns[0].dtype == 0 && request.columns[0].size == 16);
  CHECK(request.columns[1].place == 2 && request.columns[1].dtype == 3 &&
        request.columns[1].offset == request.bytes.size() - 16);
}

TEST(requests_of_another_form_are_not_taken) {
  for (const auto& [before, after] : std::vector<std::pair<std::string, std::string>>{
           {"\"a\"", "\"z\""},
           {"\"a\"", "\"b\""},
           {"INT64", "FP32"},
           {"INT64", "INT8"},
           {"[2]", "[3]"},
           {"[2]", "[0]"},
           {"[2]", "[2,1,1]"},
           {"[2]", "[]"},
           {"[2]", "[9]"},
           {"[2,2]", "[2]"},
           {"[2,2]", "[2,3]"},
           {":16", ":8"},
           {":16", ":16.0"},
           {"true", "false"},
           {"true", "1"},
           {"\"id\"", "\"inputs\""},
           {"\"id\"", "\"other\""},
           {"\"x\"", "5"},
           {"\"x\"}", "\"x\"}}"},
           {"\"x\"}", "\"x\""},
           {"\"parameters\":{\"binary_data_output\":true},", ""},
           {"\"datatype\":\"INT64\",", ""},
           {"\"shape\":[2],", ""},
           {"\"name\":\"a\",", ""},
           {"\"a\",", "\"a\",\"data\":[1,2],"},
           {"\"a\",", "\"a\",\"name\":\"a\","},
           {"}],", "},],"},
           {"\"id\":", "\"outputs\":[{\"name\":\"t\"}],\"id\":"},
           {"\"id\":", "\"outputs\":[{\"name\":\"s\"},{\"name\":\"s\"}],\"id\":"}}) {
    CHECK(!reads(replaced(kJson, before, after), 32));
  }
  CHECK(!reads(kJson, 31));
  CHECK(!reads(kJson, 33));
  CHECK(reads(replaced(kJson, "[2]", "[ 2 , 1 ]"), 32));
  CHECK(reads(replaced(kJson, "\"id\":", "\"outputs\":[{\"name\":\"s\"}],\"id\":"), 32));
}

// Under the address sanitizer, no input may read beyond its end; what is taken must lie within the bytes.
TEST(damaged_requests_are_read_within_their_bounds) {
  std::mt19937_64 random(5);
  const std::string marks = "{}[]\":,0123456789 \\tfn";
  for (int i = 0; i < 100'000; ++i) {
    std::string json = kJson, head = kHead;
    for (std::string* text : {&json, &head}) {
      for (std::uint64_t k = random() % 4; k > 0; --k) {
        const std::size_t at = random() % text->size();
        switch (random() % 3) {
          case 0: (*text)[at] = marks[random() % marks.size()]; break;
          case 1: text->erase(at, 1 + random() % 8); break;
          default: text->insert(at, text->substr(random() % text->size(), random() % 16));
        }
        if (text->empty()) *text = "x";
      }
    }
    InferHead found;
    if (read_head(head, found) == HeadState::kInference) CHECK(found.size <= head.size());
    InferRequest request;
    if (!reads(json, random() % 40, &request)) continue;
    for (const ColumnPart& part : request.columns) CHECK(part.offset + part.size <= request.bytes.size());
  }
}

TEST(an_answer_is_written_as_it_was_asked_for) {
  const Model made = model();
  InferRequest request;
  reads(kJson, 32, &request);
  std::string out;
  const float scores[] = {1.0F, 2.0F};
  made.write(out, request, {reinterpret_cast<const char*>(scores)}, {"\"3\"", "{}", "3", ""}, "date: x\r\n", true);
  const std::string json = R"({"id":"x","model_name":"m","model_version":"3","parameters":{},)"
                           R"("outputs":[{"name":"s","shape":[2],"parameters":{"binary_data_size":8}}]})";
  CHECK(out == "HTTP/1.1 200 OK\r\ndate: x\r\ncontent-length: " + std::to_string(json.size() + 8) +
                   "\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: " +
                   std::to_string(json.size()) + "\r\nconnection: close\r\n\r\n" + json +
                   std::string(reinterpret_cast<const char*>(scores), 8));
}

RUN_ALL_TESTS()
