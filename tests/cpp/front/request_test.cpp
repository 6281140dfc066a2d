// Bodies of requests to a model, the columns that their tensors become, and the answers.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "check.h"
#include "columns.h"
#include "damage.h"
#include "http_request.h"
#include "model.h"
#include "number_text.h"

using namespace emberline::front;

namespace {

constexpr std::uint8_t kIntegers = 1U << kInt64 | 1U << kInt32 | 1U << kUint64;
constexpr std::uint8_t kFloats = kIntegers | 1U << kFp32;

ModelInput input(const char* name, std::uint16_t place, std::uint8_t takes, std::int64_t width, bool is_required) {
  ModelInput made;
  made.name = name;
  made.place = place;
  made.takes = takes;
  made.width = width;
  made.is_required = is_required;
  return made;
}

// a: INT64 of one value; b: FP32 of two; c: optional, as a. h: an optional list of a user; u: of a user.
std::shared_ptr<Model> make_model() {
  std::vector<ModelInput> inputs{input("a", 0, kIntegers, 1, true), input("b", 2, kFloats, 2, true),
                                 input("c", 5, kIntegers, 1, false), input("h", 6, kIntegers, 4, false),
                                 input("u", 7, kIntegers, 1, false)};
  inputs[2].has_valid = true;
  inputs[3].is_list = inputs[3].is_user = inputs[3].has_valid = true;
  inputs[4].is_user = true;
  const ModelOutput output{"s", "{\"name\":\"s\",\"shape\":[", "]", 4, kFp32, "FP32", {}};
  return std::make_shared<Model>(1, std::move(inputs), std::vector<ModelOutput>{output}, 8, "m", "\"m\"",
                                 std::vector<ModelLevel>{{0, false}, {5'000, false}, {7'000, true}}, std::size_t{0});
}

const std::shared_ptr<Model>& model() {
  static const std::shared_ptr<Model> made = make_model();
  return made;
}

constexpr const char* kJson =
    R"({"inputs":[{"name":"a","shape":[2],"datatype":"INT64","parameters":{"binary_data_size":16}},)"
    R"({"name":"b","shape":[2,2],"datatype":"FP32","parameters":{"binary_data_size":16}}],)"
    R"("parameters":{"binary_data_output":true},"id":"x"})";

constexpr const char* kText = R"({"inputs":[{"name":"a","shape":[2],"datatype":"INT64","data":[-5,9007199254740993]},)"
                              R"({"name":"b","shape":[2,2],"datatype":"FP32","data":[[0.1,1],[-0.0,2.5e-3]]}],)"
                              R"("parameters":{"priority":2,"timeout":3}})";

bool reads(const std::string& json, const std::string& tail, InferRequest* out = nullptr) {
  const Route route{model(), nullptr};
  InferRequest request;
  request.arrived_ns = 1'000'000;
  request.bytes = "head" + json + tail;
  const bool is_read = read_http_request(route, request, 4, static_cast<std::int64_t>(json.size()), "");
  if (out != nullptr) *out = std::move(request);
  return is_read;
}

bool reads(const std::string& json, std::size_t tail) { return reads(json, std::string(tail, '\1')); }

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string replaced(std::string text, const std::string& before, const std::string& after) {
  const std::size_t at = text.find(before);
  CHECK(at != std::string::npos);
  return text.replace(at, before.size(), after);
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, std::size_t size) {
  return R"({"name":")" + name + R"(","shape":)" + shape + R"(,"datatype":")" + dtype +
         R"(","parameters":{"binary_data_size":)" + std::to_string(size) + "}},";
}

std::string with(const std::string& entries) { return replaced(kJson, "[{", "[" + entries + "{"); }

std::string joined(InferRequests requests) {
  std::string out(joined_bytes(requests), '\xee');
  join_columns(requests, out.data());
  return out;
}

std::shared_ptr<InferRequest> shared(const std::string& json, const std::string& tail) {
  auto request = std::make_shared<InferRequest>();
  CHECK(reads(json, tail, request.get()));
  return request;
}

}  // namespace

TEST(a_plain_request_is_read) {
  InferRequest request;
  CHECK(reads(kJson, std::string(32, '\1'), &request));
  CHECK(request.rows == 2 && request.id == "x" && request.outputs.size() == 1 && request.columns.size() == 2);
  CHECK(request.columns[0].place == 0 && request.columns[0].dtype == kInt64 && request.columns[0].values.size == 16);
  CHECK(request.columns[1].place == 2 && request.columns[1].dtype == kFp32 &&
        request.columns[1].values.offset == request.bytes.size() - 16);
  CHECK(request.level == 0 && request.deadline_ns == 0 && request.delay_at_ns == 0 && request.outputs[0].is_binary);
}

TEST(requests_of_another_form_are_not_taken) {
  for (const auto& [before, after] : std::vector<std::pair<std::string, std::string>>{
           {"\"a\"", "\"z\""},
           {"\"a\"", "\"b\""},
           {"INT64", "FP32"},
           {"INT64", "INT8"},
           {"INT64", "BYTES"},
           {"[2]", "[3]"},
           {"[2]", "[0]"},
           {"[2]", "[2,1,1]"},
           {"[2]", "[]"},
           {"[2]", "[9]"},
           {"[2,2]", "[2]"},
           {"[2,2]", "[2,3]"},
           {":16", ":8"},
           {":16", ":16.0"},
           {"true", "1"},
           {"\"id\"", "\"inputs\""},
           {"\"id\"", "\"other\""},
           {"\"x\"", "5"},
           {"\"x\"}", "\"x\"}}"},
           {"\"x\"}", "\"x\""},
           {"\"datatype\":\"INT64\",", ""},
           {"\"shape\":[2],", ""},
           {"\"name\":\"a\",", ""},
           {"\"a\",", "\"a\",\"data\":[1,2],"},
           {"\"a\",", "\"a\",\"name\":\"a\","},
           {"}],", "},],"},
           {"\"id\":", "\"outputs\":[{\"name\":\"t\"}],\"id\":"},
           {"\"id\":", "\"outputs\":[{\"name\":\"s\"},{\"name\":\"s\"}],\"id\":"},
           {"true}", "true,\"priority\":-1}"},
           {"true}", "true,\"priority\":\"1\"}"},
           {"true}", "true,\"priority\":1,\"priority\":1}"},
           {"true}", "true,\"timeout\":1.5}"},
           {"true}", "true,\"timeout\":4398046511105}"},
           {"true}", "true,\"sequence_id\":1}"},
           {"true}", "true,\"min_snapshot\":\"1.0\"}"},
           {"true}", "true,\"routing_key\":null}"},
           {"true}", "true,\"routing_key\":-1}"},
           {"true}", "true,\"routing_key\":\"" + std::string(1025, 'k') + "\"}"}}) {
    CHECK(!reads(replaced(kJson, before, after), 32));
  }
  CHECK(!reads(kJson, 31));
  CHECK(!reads(kJson, 33));
  CHECK(reads(replaced(kJson, "[2]", "[ 2 , 1 ]"), 32));
  CHECK(reads(replaced(kJson, "\"id\":", "\"outputs\":[{\"name\":\"s\"}],\"id\":"), 32));
}

TEST(priority_and_timeout_say_when_a_request_is_due) {
  const auto due = [](const std::string& parameters) {
    InferRequest request;
    CHECK(reads(replaced(kJson, "true}", "true," + parameters + "}"), std::string(32, '\1'), &request));
    return std::vector<std::int64_t>{static_cast<std::int64_t>(request.level), request.deadline_ns,
                                     request.delay_at_ns};
  };
  constexpr std::int64_t kArrived = 1'000'000;
  CHECK((due("\"timeout\":0") == std::vector<std::int64_t>{0, 0, 0}));
  CHECK((due("\"timeout\":4398046511104")[1] == kArrived + 4398046511104'000));
  CHECK((due("\"priority\":2") == std::vector<std::int64_t>{1, kArrived + 5'000, 0}));
  CHECK((due("\"priority\":2,\"timeout\":3")[1] == kArrived + 3'000));
  CHECK((due("\"priority\":2,\"timeout\":9")[1] == kArrived + 5'000));
  CHECK((due("\"priority\":3,\"timeout\":9") == std::vector<std::int64_t>{2, kArrived + 9'000, kArrived + 7'000}));
  CHECK((due("\"priority\":4") == std::vector<std::int64_t>{0, 0, 0}));
}

TEST(an_output_without_a_form_in_json_is_sent_as_bytes_only) {
  const ModelOutput output{"s", "{\"name\":\"s\",\"shape\":[", "]", 4, kNoWire, "FP32", {}};
  const Model made(1, {}, {output}, 8, "m", "\"m\"", {{0, false}}, 0);
  InferRequest request;
  CHECK(!made.add_output(request, "s", false) && !made.add_outputs(request, false) && request.outputs.empty());
  CHECK(made.add_outputs(request, true) && request.outputs.size() == 1 && !made.add_output(request, "s", true));
}

TEST(a_key_goes_to_the_arm_that_python_sends_it_to) {
  // Digests of hashlib.blake2b(key, digest_size=8, key=b"m") as fractions.
  CHECK(routing_point("m", "k") == 0.9868535164329096 &&
        routing_point("m", std::string(128, 'x')) == 0.7177955035097565);
  CHECK(routing_point("m", std::string(129, 'x')) == 0.28804699818538776);
  CHECK(routing_point(std::string(70, 'n'), "k") == routing_point(std::string(64, 'n'), "k"));
  for (int i = 0; i < 1000; ++i) CHECK(routing_point("m", "") >= 0.0 && routing_point("m", "") < 1.0);
  CHECK(routing_point("m", "") != routing_point("m", ""));
  const auto chosen = [](const std::string& parameters, double share, double arm_share) {
    const Route route{model(), make_model(), share};
    auto request = std::make_shared<InferRequest>();
    const std::string json = replaced(kJson, "true}", "true" + parameters + "}");
    request->bytes = json + std::string(32, '\1');
    model()->set_canary_share(arm_share);
    CHECK(read_http_request(route, *request, 0, static_cast<std::int64_t>(json.size()), "k"));
    model()->set_canary_share(0.0);
    return std::pair(request->model == route.canary, request->canary);
  };
  const double k = routing_point("m", "k"), seven = routing_point("m", "7");
  CHECK(chosen("", k, 0.0) == std::pair(false, false) && chosen("", std::nextafter(k, 1.0), 0.0).first);
  CHECK(!chosen("", 0.0, k).second && chosen("", 0.0, std::nextafter(k, 1.0)).second);
  for (const char* key : {",\"routing_key\":7", ",\"routing_key\":\"7\""}) {
    CHECK(!chosen(key, seven, 0.0).first && chosen(key, std::nextafter(seven, 1.0), 0.0).first);
  }
  CHECK(chosen(",\"routing_key\":\"\"", 1.0, 0.0).first);
}

TEST(a_list_keeps_what_its_lengths_say) {
  const std::string lists = bytes_of<std::int32_t>({1, 2, 3, 4, 5, 6}), plain(32, '\0');
  const std::string list = entry("h", "INT32", "[2,3]", 24);
  const auto whole = shared(with(list), lists + plain);
  CHECK(whole->columns.size() == 3 && whole->columns[2].form == kList && whole->columns[2].count == 6);
  const auto cut =
      shared(with(list + entry("h.lengths", "INT64", "[2]", 16)), lists + bytes_of<std::int64_t>({2, 0}) + plain);
  CHECK(cut->columns[2].count == 2 && can_join(*whole, *cut));
  const std::string expected = std::string(64, '\0') + bytes_of<std::int64_t>({0, 3, 6, 8, 8}) +
                               bytes_of<std::int32_t>({1, 2, 3, 4, 5, 6, 1, 2});
  CHECK(joined({whole, cut}) == expected);
  // An odd number of 32-bit values is padded, and so is what says which lists there are; any byte but 0 is true.
  const auto valid = shared(with(list + entry("h.lengths", "INT32", "[2,1]", 8) + entry("h.valid", "BOOL", "[2]", 2)),
                            lists + bytes_of<std::int32_t>({0, 3}) + std::string("\x07\0", 2) + plain);
  CHECK(!can_join(*whole, *valid));
  CHECK(joined({valid}) == plain + bytes_of<std::int64_t>({0, 0, 3}) + bytes_of<std::int32_t>({4, 5, 6, 0}) +
                               std::string("\1\0\0\0\0\0\0\0", 8));
}

TEST(companions_of_another_form_are_not_taken) {
  const std::string list = entry("h", "INT64", "[2,1]", 16);
  const std::string plain(32, '\0'), values = bytes_of<std::int64_t>({1, 2});
  const auto takes = [&](const std::string& companion, const std::string& bytes) {
    return reads(with(list + companion), values + bytes + plain);
  };
  CHECK(takes(entry("h.lengths", "UINT64", "[2]", 16), bytes_of<std::int64_t>({1, 0})));
  CHECK(!takes(entry("h.lengths", "UINT64", "[2]", 16), bytes_of<std::int64_t>({1, -1})));
  CHECK(!takes(entry("h.lengths", "INT64", "[2]", 16), bytes_of<std::int64_t>({1, 2})));
  CHECK(!takes(entry("h.lengths", "INT64", "[1]", 8), bytes_of<std::int64_t>({1})));
  CHECK(!takes(entry("h.lengths", "INT64", "[2,2]", 32), bytes_of<std::int64_t>({1, 1, 1, 1})));
  CHECK(!takes(entry("h.lengths", "FP32", "[2]", 8), bytes_of<float>({1, 1})));
  CHECK(!takes(entry("h.valid", "INT64", "[2]", 16), bytes_of<std::int64_t>({1, 1})));
  CHECK(!takes(entry("h.valid", "BOOL", "[2]", 2) + entry("h.valid", "BOOL", "[2]", 2), "\1\1\1\1"));
  CHECK(!takes(entry("a.valid", "BOOL", "[2]", 2), "\1\1"));
  CHECK(!takes(entry("c.valid", "BOOL", "[2]", 2), "\1\1"));
  CHECK(!reads(with(entry("h", "INT64", "[2,5]", 80)), std::string(112, '\0')));
  CHECK(!reads(with(entry("h", "INT64", "[2]", 16)), std::string(48, '\0')));
}

TEST(one_row_of_a_user_stands_for_all_rows) {
  const std::string user = entry("u", "INT64", "[1]", 8), plain(32, '\0');
  const auto request = shared(with(user), bytes_of<std::int64_t>({9}) + plain);
  CHECK(request->rows == 2 && request->has_one_row && request->columns[2].form == kOneRow);
  CHECK(!can_join(*request, *request));
  CHECK(joined({request}) == plain + bytes_of<std::int64_t>({9}));
  const auto many = shared(with(entry("u", "INT64", "[2]", 16)), bytes_of<std::int64_t>({9, 8}) + plain);
  CHECK(!many->has_one_row && can_join(*many, *many));
  CHECK(!reads(with(entry("u", "INT64", "[3]", 24)), std::string(56, '\0')));
  CHECK(!reads(with(entry("c", "INT64", "[1]", 8)), std::string(40, '\0')));  // not an input of the user
}

TEST(values_are_read_from_text) {
  const auto request = shared(kText, "");
  CHECK(request->rows == 2 && request->level == 1 && request->deadline_ns == 1'003'000);
  CHECK(!request->outputs[0].is_binary);
  CHECK(joined({request}) ==
        bytes_of<std::int64_t>({-5, 9007199254740993}) + bytes_of<float>({0.1F, 1, -0.0F, 2.5e-3F}));
  CHECK(reads(replaced(kText, "[[0.1,1],[-0.0,2.5e-3]]", "[ 0.1 ,1,\n-0.0,2.5E-3 ]"), ""));
  // By way of a double, as other readers do: rounded twice, it is another number than rounded once.
  InferRequest twice;
  CHECK(reads(replaced(kText, "0.1", "1.00000017881393432617187499"), "", &twice));
  float first = 0;
  std::memcpy(&first, twice.data(twice.columns[1].values), sizeof first);
  CHECK(first == static_cast<float>(1.00000017881393432617187499));
}

TEST(text_that_readers_may_read_differently_is_not_taken) {
  for (const char* values : {"[1]",
                             "[1,2,3]",
                             "[[1],[2]]",
                             "[1,2",
                             "[1,,2]",
                             "[1,2,]",
                             "[1,true]",
                             "[1,null]",
                             "[1,\"2\"]",
                             "[1,2.0]",
                             "[1,2e0]",
                             "[1,-0]",
                             "[1,02]",
                             "[1,+2]",
                             "[1,9223372036854775808]",
                             "[1,-9223372036854775809]",
                             "1",
                             "null",
                             "[]",
                             "[[1,2]]"}) {
    CHECK(!reads(replaced(kText, "[-5,9007199254740993]", values), ""));
  }
  for (const char* value : {"1.",    ".5",    "1e",   "1e+",   "-",
                            "01",    "01.5",  "-0",   "NaN",   "Infinity",
                            "inf",   "0x1",   "1e39", "1e400", "1e-400",
                            "-1e39", "1.5.5", "1_0",  "true",  "0.12345678901234567890123456789012345678901"}) {
    CHECK(!reads(replaced(kText, "0.1", value), ""));
  }
  for (const char* value : {"0", "-0.0", "0e0", "-0e5", "3.4028234663852886e38", "1e-45", "18446744073709551616"}) {
    CHECK(reads(replaced(kText, "0.1", value), ""));
  }
  CHECK(!reads(replaced(kText, "\"datatype\":\"INT64\",\"data\":[-5,9007199254740993]",
                        "\"data\":[-5,9007199254740993],\"datatype\":\"INT64\""),
               ""));
  CHECK(!reads(replaced(kText, "\"data\":[-5", "\"parameters\":{\"binary_data_size\":0},\"data\":[-5"), ""));
  CHECK(reads(replaced(kText, "\"data\":[-5", "\"parameters\":{},\"data\":[-5"), ""));
  CHECK(!reads(kText, "x"));
  CHECK(!reads(replaced(kText, "[2]", "[900000000000000000]"), ""));
  CHECK(!reads(replaced(kText, "[2,2]", "[900000000000000000,900000000000000000]"), ""));
}

TEST(numbers_are_written_with_the_fewest_digits) {
  const auto text = [](auto value) {
    std::string out;
    append_number(out, value);
    return out;
  };
  CHECK(text(0.0) == "0.0" && text(-0.0F) == "-0.0" && text(1.0F) == "1.0" && text(-12345.678) == "-12345.678");
  CHECK(text(1e15) == "1000000000000000.0" && text(1e16) == "1e+16" && text(1e-5) == "0.00001" && text(9e-6) == "9e-6");
  CHECK(text(1e12F) == "1000000000000.0" && text(1e13F) == "1e+13" && text(1e-6F) == "0.000001");
  CHECK(text(1.25e-7F) == "1.25e-7" && text(0.1F) == "0.1" && text(100.5F) == "100.5");
  CHECK(text(std::numeric_limits<double>::denorm_min()) == "5e-324");
  CHECK(text(-std::numeric_limits<double>::max()).size() + 1 == kLongestNumberText);
  CHECK(text(std::numeric_limits<std::uint64_t>::max()) == "18446744073709551615");
}

// Under the address sanitizer, no input may read beyond its end; what is taken must lie within the bytes.
TEST(damaged_requests_are_read_within_their_bounds) {
  std::mt19937_64 random(5);
  const std::string bytes = bytes_of<std::int64_t>({3, 1, 2, 0, 1, 2, 2, 1});
  const std::string whole =
      with(entry("h", "INT32", "[2,3]", 24) + entry("h.lengths", "INT64", "[2]", 16) + entry("u", "INT64", "[1]", 8));
  for (int i = 0; i < 100'000; ++i) {
    std::string json = i % 3 == 0 ? kJson : i % 3 == 1 ? kText : whole;
    damage(json, random);
    std::string tail;
    for (std::size_t size = i % 3 == 0 ? 32 : i % 3 == 1 ? 0 : 80; tail.size() < size;) tail += bytes;
    tail.resize(i % 3 == 0 ? 32 : i % 3 == 1 ? 0 : 80);
    if (random() % 4 == 0) tail.resize(random() % 90);
    auto request = std::make_shared<InferRequest>();
    if (!reads(json, tail, request.get())) continue;
    for (const ColumnPart& part : request->columns) {
      for (const Span* span : {&part.values, &part.lengths, &part.valid}) {
        CHECK(span->offset + span->size <= (span->is_made ? request->made : request->bytes).size());
      }
    }
    joined({request});
  }
}

TEST(an_answer_is_written_as_it_was_asked_for) {
  InferRequest request;
  CHECK(reads(kJson, std::string(32, '\1'), &request));
  std::string out;
  const float scores[] = {1.0F, 2.5F};
  const std::vector<const char*> outputs = {reinterpret_cast<const char*>(scores)};
  request.model->write(out, request, outputs, {"\"3\"", "{}", "3", ""}, "date: x\r\n", true);
  const std::string json = R"({"id":"x","model_name":"m","model_version":"3","parameters":{},)"
                           R"("outputs":[{"name":"s","shape":[2],"parameters":{"binary_data_size":8}}]})";
  CHECK(out == "HTTP/1.1 200 OK\r\ndate: x\r\ncontent-length: " + std::to_string(json.size() + 8) +
                   "\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: " +
                   std::to_string(json.size()) + "\r\nconnection: close\r\n\r\n" + json +
                   std::string(reinterpret_cast<const char*>(scores), 8));
  request.outputs[0].is_binary = false;
  out.clear();
  request.model->write(out, request, outputs, {"\"3\"", "{}", "3", ""}, "date: x\r\n", false);
  const std::string text = R"({"id":"x","model_name":"m","model_version":"3","parameters":{},)"
                           R"("outputs":[{"name":"s","shape":[2],"data":[1.0,2.5]}]})";
  CHECK(out == "HTTP/1.1 200 OK\r\ndate: x\r\ncontent-length: " + std::to_string(text.size()) +
                   "\r\ncontent-type: application/json\r\n\r\n" + text);
  CHECK(request.model->answer_bytes(request) >= text.size());
}

RUN_ALL_TESTS()
