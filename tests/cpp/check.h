// The test macros of the C++ suites: CHECK records a failure with its place and goes on; TEST registers a case.
// A library would do more than we use, and none comes with a bare g++.
#pragma once

#include <cstdio>
#include <functional>
#include <vector>

namespace check {

struct Case {
  const char* name;
  std::function<void()> body;
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct Register {
  Register(const char* name, std::function<void()> body) { cases().push_back({name, std::move(body)}); }
};

inline int run_all() {
  for (const Case& c : cases()) {
    const int before = failures();
    c.body();
    std::printf("%s %s\n", failures() == before ? "ok  " : "FAIL", c.name);
  }
  std::printf("%zu cases, %d failures\n", cases().size(), failures());
  return failures() == 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                           \
  static void name();                                        \
  static const check::Register register_##name(#name, name); \
  static void name()

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      std::printf("%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
      ++check::failures();                                                      \
    }                                                                           \
  } while (false)

#define CHECK_THROWS(expression, exception)                                                     \
  do {                                                                                          \
    bool thrown = false;                                                                        \
    try {                                                                                       \
      (void)(expression);                                                                       \
    } catch (const exception&) {                                                                \
      thrown = true;                                                                            \
    }                                                                                           \
    if (!thrown) {                                                                              \
      std::printf("%s:%d: %s did not throw %s\n", __FILE__, __LINE__, #expression, #exception); \
      ++check::failures();                                                                      \
    }                                                                                           \
  } while (false)

#define RUN_ALL_TESTS() \
  int main() { return check::run_all(); }
