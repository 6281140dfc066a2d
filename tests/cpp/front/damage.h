// Changes a text at a few places, as a client with a fault or an attacker may.
#pragma once

#include <random>
#include <string>

inline void damage(std::string& text, std::mt19937_64& random) {
  static const std::string marks = "{}[]\":,0123456789 \\tfn-.e";
  for (std::uint64_t k = random() % 4; k > 0; --k) {
    const std::size_t at = random() % text.size();
    switch (random() % 3) {
      case 0: text[at] = marks[random() % marks.size()]; break;
      case 1: text.erase(at, 1 + random() % 8); break;
      default: text.insert(at, text.substr(random() % text.size(), random() % 16));
    }
    if (text.empty()) text = "x";
  }
}
