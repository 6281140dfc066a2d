#include "training/table_gradients.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "training/distinct_ids.h"
#include "training/threads.h"

namespace emberline {

void TableGradients::set_starts() {
  const std::vector<std::uint32_t>& counts = found.counts;
  starts.resize(counts.size() + 1);
  std::uint32_t start = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    starts[i] = start;
    start += counts[i];
  }
  starts[counts.size()] = start;
  contributions.resize(start);
}

TableGradients TableGradients::of_rows(TrainingTable& table, const std::int64_t* ids, std::size_t n,
                                       const float* grads) {
  TableGradients made;
  DistinctIds distinct(made.found);
  std::vector<std::uint32_t> at(n);
  for (std::size_t i = 0; i < n; ++i) at[i] = distinct.add(ids[i]);
  {
    const std::lock_guard lock(table.mutex());
    table.find_to_step(made.found);
  }
  made.set_starts();
  std::vector<std::uint32_t> next = made.starts;
  for (std::size_t i = 0; i < n; ++i) made.contributions[next[at[i]]++] = {grads + i * table.dim(), 1.0f, false};
  return made;
}

TableGradients TableGradients::merged(const std::vector<const TableGradients*>& parts) {
  TableGradients made;
  DistinctIds distinct(made.found);
  for (const TableGradients* part : parts) {
    for (std::size_t i = 0; i < part->found.ids.size(); ++i) {
      // An id that had no row in one of the lookups has no gradient there.
      if (part->found.has_row(i)) {
        distinct.add(part->found.ids[i], part->starts[i + 1] - part->starts[i]);
      }
    }
  }
  made.set_starts();
  made.found.slots.assign(made.found.ids.size(), 1);  // the layout of before any table: they are looked up again
  made.found.beside.assign(made.found.ids.size(), 0);
  std::vector<std::uint32_t> next = made.starts;
  for (const TableGradients* part : parts) {
    for (std::size_t i = 0; i < part->found.ids.size(); ++i) {
      if (!part->found.has_row(i)) continue;
      std::uint32_t& to = next[distinct.place(part->found.ids[i])];
      for (std::uint32_t from = part->starts[i]; from < part->starts[i + 1]; ++from) {
        made.contributions[to++] = part->contributions[from];
      }
    }
  }
  return made;
}

namespace {

// Rows of one table that one thread works on.
struct Range {
  std::size_t table, first, last;
};

// Brings the gradients up to date and divides them into ranges.
std::vector<Range> ranges_of(const std::vector<TableStep>& tables, std::size_t threads) {
  constexpr std::size_t kRows = 512;
  on_threads(threads, tables.size(), [&](std::size_t i) { tables[i].table->find_again(tables[i].gradients->found); });
  std::vector<Range> ranges;
  for (std::size_t table = 0; table < tables.size(); ++table) {
    const std::size_t n = tables[table].gradients->found.ids.size();
    for (std::size_t first = 0; first < n; first += kRows) ranges.push_back({table, first, std::min(n, first + kRows)});
  }
  return ranges;
}

std::vector<TrainingTable*> tables_of(const std::vector<TableStep>& steps) {
  std::vector<TrainingTable*> tables;
  for (const TableStep& each : steps) tables.push_back(each.table);
  return tables;
}

// Steps the rows of a range. What the next rows need is on its way meanwhile.
std::size_t step_range(TrainingTable& table, const TableGradients& gradients, const StepNumbers& numbers,
                       const OptimizerLoops& loops, std::size_t first, std::size_t last) {
  constexpr std::size_t kAhead = 4, kLine = 16, kMostLines = 16;
  const std::uint32_t dim = table.dim();
  const auto step = loops.step[static_cast<int>(numbers.step.rule)];
  const std::size_t lines = std::min(kMostLines, (std::size_t{dim} + table.slots() + kLine - 1) / kLine);
  const std::size_t grad_lines = std::min(kMostLines, (std::size_t{dim} + kLine - 1) / kLine);
  const FoundRows& found = gradients.found;
  std::vector<float> sum(dim);
  std::size_t stepped = 0;
  for (std::size_t i = first; i < last; ++i) {
    if (i + kAhead < last && found.slots[i + kAhead] != 0) {
      const float* ahead = table.row(found.slots[i + kAhead]);
      for (std::size_t line = 0; line < lines; ++line) __builtin_prefetch(ahead + line * kLine, 1, 3);
      const float* grad = gradients.contributions[gradients.starts[i + kAhead]].grad;
      for (std::size_t line = 0; line < grad_lines; ++line) __builtin_prefetch(grad + line * kLine, 0, 3);
    }
    if (found.slots[i] == 0) continue;
    const std::uint32_t begin = gradients.starts[i];
    loops.sum(gradients.contributions.data() + begin, gradients.starts[i + 1] - begin, dim, sum.data());
    float* row = table.row(found.slots[i]);
    step(numbers, row, row + dim, sum.data(), dim);
    ++stepped;
  }
  return stepped;
}

}  // namespace

std::size_t step_tables(const std::vector<TableStep>& tables, const Step& step, std::size_t threads) {
  for (const TableStep& each : tables) {
    if (each.table->options().rule != step.rule) {
      throw std::invalid_argument(std::string("the table was made for ") + rule_name(each.table->options().rule) +
                                  ", not for " + rule_name(step.rule));
    }
  }
  const Locks locks(tables_of(tables));
  const std::vector<Range> ranges = ranges_of(tables, threads);
  std::vector<StepNumbers> numbers;
  for (const TableStep& each : tables) {
    Step own = step;
    own.t = each.table->steps() + 1;
    each.table->set_steps(own.t);
    numbers.push_back(numbers_of(own));
  }
  const OptimizerLoops& loops = optimizer_loops();
  std::vector<std::size_t> stepped(ranges.size());
  on_threads(threads, ranges.size(), [&](std::size_t i) {
    const auto [table, first, last] = ranges[i];
    stepped[i] = step_range(*tables[table].table, *tables[table].gradients, numbers[table], loops, first, last);
  });
  return std::accumulate(stepped.begin(), stepped.end(), std::size_t{0});
}

double squared_norm(const std::vector<TableStep>& tables, std::size_t threads) {
  const Locks locks(tables_of(tables));
  const std::vector<Range> ranges = ranges_of(tables, threads);
  const OptimizerLoops& loops = optimizer_loops();
  std::vector<double> squares(ranges.size());
  on_threads(threads, ranges.size(), [&](std::size_t i) {
    const auto [table, first, last] = ranges[i];
    const TableGradients& gradients = *tables[table].gradients;
    const std::uint32_t dim = tables[table].table->dim();
    std::vector<float> sum(dim);
    for (std::size_t at = first; at < last; ++at) {
      if (gradients.found.slots[at] == 0) continue;
      const std::uint32_t begin = gradients.starts[at];
      loops.sum(gradients.contributions.data() + begin, gradients.starts[at + 1] - begin, dim, sum.data());
      squares[i] += static_cast<double>(loops.squares(sum.data(), dim));
    }
  });
  return std::accumulate(squares.begin(), squares.end(), 0.0);
}

}  // namespace emberline
