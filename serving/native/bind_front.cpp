// The Python face of the front: queues that hold requests of both kinds, models, and the server of connections.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>
#include <utility>

#include "mailbox.h"
#include "model.h"
#include "number_text.h"
#include "queue.h"
#include "request_ids.h"
#include "route.h"

void bind_observer(nanobind::module_& m);  // in bind_observer.cpp
void bind_servers(nanobind::module_& m);   // in bind_servers.cpp

namespace nb = nanobind;
using namespace nb::literals;
using namespace emberline::front;

namespace {

// A request that Python made.
struct PythonRequest : Waiting {
  explicit PythonRequest(nb::object made) : object(std::move(made)) {}
  ~PythonRequest() override {
    // The last reference may be dropped by a thread without the lock.
    const nb::gil_scoped_acquire lock;
    object.reset();
  }
  PythonRequest(const PythonRequest&) = delete;
  PythonRequest& operator=(const PythonRequest&) = delete;

  nb::object object;
};

// A request's place in a queue, for Python. It refers to the request weakly, which refers to the object that has it.
struct Ticket {
  std::weak_ptr<Waiting> request;
};

using Sorted = std::pair<nb::list, nb::list>;

// Returns Python's requests, and the others as batches of those that can be joined, all in their order.
Sorted sorted(std::vector<Request>& requests) {
  nb::list own;
  std::vector<InferRequests> groups;
  for (Request& each : requests) {
    if (const auto made = std::dynamic_pointer_cast<PythonRequest>(each)) {
      own.append(made->object);
      continue;
    }
    auto read = std::static_pointer_cast<InferRequest>(std::move(each));
    bool is_placed = false;
    for (auto& group : groups) {
      if (!can_join(*group.front(), *read)) continue;
      group.push_back(std::move(read));
      is_placed = true;
      break;
    }
    if (!is_placed) groups.emplace_back().push_back(std::move(read));
  }
  nb::list batches;
  for (auto& group : groups) batches.append(nb::cast(RequestBatch(std::move(group))));
  return {own, batches};
}

std::string put(Queue& queue, nb::object made, std::int64_t rows, std::int64_t arrived_ns, std::int64_t deadline_ns,
                std::int64_t delay_at_ns, std::size_t level, bool canary, Ticket& ticket) {
  auto request = std::make_shared<PythonRequest>(std::move(made));
  request->rows = rows;
  request->arrived_ns = arrived_ns;
  request->deadline_ns = deadline_ns;
  request->delay_at_ns = delay_at_ns;
  request->level = level;
  request->canary = canary;
  ticket.request = request;
  Refusal refusal;
  {
    const nb::gil_scoped_release release;
    refusal = queue.put(std::move(request));
  }
  if (!refusal) return "";
  ticket.request.reset();
  return refusal.is_closed ? "closed" : std::move(refusal.overloaded);
}

nb::object take(Queue& queue) {
  Batch batch;
  {
    const nb::gil_scoped_release release;
    batch = queue.take();
  }
  if (batch.is_end) return nb::none();
  auto [requests, batches] = sorted(batch.requests);
  auto [expired, expired_batches] = sorted(batch.expired);
  for (nb::handle each : expired_batches) nb::cast<RequestBatch&>(each).expire();
  return nb::make_tuple(requests, batches, expired);
}

nb::object block(const RequestBatch& batch) {
  const std::size_t bytes = joined_bytes(batch.requests());
  auto memory = std::make_unique<char[]>(bytes);
  {
    const nb::gil_scoped_release release;
    join_columns(batch.requests(), memory.get());
  }
  const nb::capsule owner(memory.get(), [](void* address) noexcept { delete[] static_cast<char*>(address); });
  return nb::cast(nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(memory.release(), {bytes}, owner));
}

using Output = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

void respond(const RequestBatch& batch, const std::vector<Output>& outputs, const AnswerHead& head,
             const BatchStages* stages) {
  const auto& wanted = batch.requests().front()->model->outputs();
  if (outputs.size() != wanted.size()) throw nb::value_error("one array an output is expected");
  std::vector<const char*> addresses;
  const auto rows = static_cast<std::size_t>(batch.rows());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].nbytes() != rows * static_cast<std::size_t>(wanted[i].row_bytes)) {
      throw nb::value_error("an output has another size than the batch");
    }
    addresses.push_back(static_cast<const char*>(outputs[i].data()));
  }
  const nb::gil_scoped_release release;
  batch.respond(addresses, head, stages);
}

std::vector<std::int64_t> arrivals(const RequestBatch& batch) {
  std::vector<std::int64_t> found;
  for (const auto& request : batch.requests()) found.push_back(request->arrived_ns);
  return found;
}

std::vector<std::int64_t> rows_of_each(const RequestBatch& batch) {
  std::vector<std::int64_t> found;
  for (const auto& request : batch.requests()) found.push_back(request->rows);
  return found;
}

// Gives an id to each request that came without one. Returns position, id and point of those whose point, which follows
// from the id alone, lies below a share.
std::vector<std::tuple<std::size_t, nb::bytes, double>> sampled(const RequestBatch& batch, const nb::bytes& seed,
                                                                double share) {
  const std::string_view of_sample(seed.c_str(), seed.size());
  std::vector<std::tuple<std::size_t, nb::bytes, double>> found;
  std::size_t place = 0;
  for (const auto& request : batch.requests()) {
    if (request->id.empty()) request->id = new_request_id();
    const double point = routing_point(of_sample, request->id);
    if (point < share) found.emplace_back(place, nb::bytes(request->id.data(), request->id.size()), point);
    ++place;
  }
  return found;
}

// Position, in two bytes, dtype and form of each column, as Layout.parse of storage/features/flat.py reads them.
nb::bytes layout(const RequestBatch& batch) {
  std::string key;
  for (const ColumnPart& part : batch.requests().front()->columns) {
    key += static_cast<char>(part.place & 0xff);
    key += static_cast<char>(part.place >> 8);
    key += static_cast<char>(part.dtype);
    key += static_cast<char>(part.form);
  }
  return nb::bytes(key.data(), key.size());
}

template <class T>
void append_numbers(std::string& text, const void* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (i != 0) text += ',';
    append_number(text, static_cast<const T*>(values)[i]);
  }
}

// Text of numbers, as answers hold them.
nb::str number_text(const nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>& values) {
  std::string text;
  if (values.dtype() == nb::dtype<float>()) {
    append_numbers<float>(text, values.data(), values.size());
  } else if (values.dtype() == nb::dtype<double>()) {
    append_numbers<double>(text, values.data(), values.size());
  } else {
    throw nb::value_error("expected 32- or 64-bit floats");
  }
  return nb::str(text.data(), text.size());
}

}  // namespace

NB_MODULE(_front, m) {
  // Objects that live until the interpreter ends, such as those of globals, are no leak that a user should read of.
  nb::set_leak_warnings(false);
  nb::class_<RequestBatch> batch(m, "RequestBatch");  // others' signatures name it
  bind_observer(m);
  nb::class_<Ticket>(m, "Ticket").def(nb::init<>());
  nb::class_<AnswerHead>(m, "AnswerHead")
      .def(
          "__init__",
          [](AnswerHead* self, std::string version, std::string parameters, std::string plain_version,
             const nb::bytes& fields, std::string snapshot) {
            new (self) AnswerHead{std::move(version), std::move(parameters), std::move(plain_version),
                                  std::string(fields.c_str(), fields.size()), std::move(snapshot)};
          },
          "version"_a, "parameters"_a, "plain_version"_a, "parameter_fields"_a, "snapshot"_a = "");

  nb::class_<Queue>(m, "Queue")
      .def(
          "__init__",
          [](Queue* self, std::string model, std::int64_t max_rows, bool merge, std::vector<std::int64_t> preferred,
             std::int64_t delay_ns, std::vector<std::int64_t> max_waiting, std::int64_t max_wait_ns,
             std::int64_t sessions) {
            if (max_waiting.empty()) throw nb::value_error("a queue has at least one level");
            new (self) Queue({std::move(model), max_rows, merge, std::move(preferred), delay_ns, std::move(max_waiting),
                              max_wait_ns},
                             sessions);
          },
          "model"_a, "max_rows"_a, "merge"_a, "preferred"_a, "delay_ns"_a, "max_waiting"_a, "max_wait_ns"_a,
          "sessions"_a)
      .def("__len__", &Queue::size)
      .def_prop_ro("sessions", &Queue::sessions)
      .def("enter", &Queue::enter)
      .def("put", &put, "request"_a, "rows"_a, "arrived_ns"_a, "deadline_ns"_a, "delay_at_ns"_a, "level"_a, "canary"_a,
           "ticket"_a)
      .def("check", [](Queue& self) { return self.check().overloaded; })
      .def(
          "discard",
          [](Queue& self, const Ticket& ticket) {
            const Request request = ticket.request.lock();
            return request != nullptr && self.discard(request.get());
          },
          "ticket"_a)
      .def("take", &take,
           nb::sig("def take(self) -> tuple[list[typing.Any], list[RequestBatch], list[typing.Any]] | None"))
      .def("leave", &Queue::leave, "sessions"_a)
      .def("retire", &Queue::retire)
      .def("close", &Queue::close)
      .def(
          "clear",
          [](Queue& self) {
            auto left = self.clear();
            return sorted(left);
          },
          nb::sig("def clear(self) -> tuple[list[typing.Any], list[RequestBatch]]"))
      .def("pause", &Queue::pause)
      .def("resume", &Queue::resume)
      .def_prop_ro("levels", &Queue::levels)
      .def("worked", &Queue::worked, "rows"_a, "ns"_a)
      .def("wait_ns", &Queue::wait_ns, "rows"_a);

  batch.def("__len__", [](const RequestBatch& self) { return self.requests().size(); })
      .def_prop_ro("rows", &RequestBatch::rows)
      .def_prop_ro("model_key", [](const RequestBatch& self) { return self.requests().front()->model->key(); })
      .def_prop_ro("canary", [](const RequestBatch& self) { return self.requests().front()->canary; })
      .def_prop_ro("arrivals_ns", &arrivals)
      .def_prop_ro("rows_of_each", &rows_of_each)
      .def_prop_ro("layout", &layout)
      .def("sampled", &sampled, "seed"_a, "share"_a)
      .def("block", &block, nb::sig("def block(self) -> numpy.typing.NDArray[numpy.uint8]"))
      .def("respond", &respond, "outputs"_a, "head"_a, "stages"_a.none() = nb::none(),
           nb::sig("def respond(self, outputs: collections.abc.Sequence[numpy.typing.NDArray[typing.Any]], "
                   "head: AnswerHead, stages: BatchStages | None = None) -> None"))
      .def("hand_over", &RequestBatch::hand_over)
      .def("expire", &RequestBatch::expire);

  nb::class_<ModelInput>(m, "ModelInput")
      .def(
          "__init__",
          [](ModelInput* self, std::string name, std::uint16_t place, const std::vector<std::string>& dtypes,
             std::int64_t width, bool is_required, bool is_list, bool is_user, bool has_valid) {
            std::uint8_t takes = 0;
            for (const std::string& dtype : dtypes) {
              const std::uint8_t wire = wire_of(dtype);
              if (wire == kNoWire) throw nb::value_error("an unknown dtype");
              takes = static_cast<std::uint8_t>(takes | 1U << wire);
            }
            new (self) ModelInput{std::move(name), place, takes, width, is_required, is_list, is_user, has_valid};
          },
          "name"_a, "place"_a, "dtypes"_a, "width"_a, "is_required"_a, "is_list"_a, "is_user"_a, "has_valid"_a);

  nb::class_<ModelOutput>(m, "ModelOutput")
      .def(
          "__init__",
          [](ModelOutput* self, std::string name, std::string before_rows, std::string after_rows,
             std::int64_t row_bytes, const std::string& json_dtype, std::string dtype, std::vector<std::int64_t> dims) {
            new (self) ModelOutput{std::move(name),     std::move(before_rows), std::move(after_rows), row_bytes,
                                   wire_of(json_dtype), std::move(dtype),       std::move(dims)};
          },
          "name"_a, "before_rows"_a, "after_rows"_a, "row_bytes"_a, "json_dtype"_a, "dtype"_a, "dims"_a);

  nb::class_<Model>(m, "Model")
      .def(
          "__init__",
          [](Model* self, std::int64_t key, std::vector<ModelInput> inputs, std::vector<ModelOutput> outputs,
             std::int64_t max_rows, std::string name, std::string name_json,
             const std::vector<std::pair<std::int64_t, bool>>& levels, std::size_t default_level) {
            std::vector<ModelLevel> known;
            for (const auto& [timeout_ns, delays] : levels) known.push_back({timeout_ns, delays});
            if (default_level >= known.size()) throw nb::value_error("no such level");
            new (self) Model(key, std::move(inputs), std::move(outputs), max_rows, std::move(name),
                             std::move(name_json), std::move(known), default_level);
          },
          "key"_a, "inputs"_a, "outputs"_a, "max_rows"_a, "name"_a, "name_json"_a, "levels"_a, "default_level"_a)
      .def_prop_rw("canary_share", &Model::canary_share, &Model::set_canary_share)
      .def(
          "set_queues",
          [](Model& self, std::vector<std::shared_ptr<Queue>> queues) {
            self.set_queues(std::make_shared<Queues>(Queues{std::move(queues)}));
          },
          "queues"_a);

  m.def("number_text", &number_text, "values"_a,
        nb::sig("def number_text(values: numpy.typing.NDArray[typing.Any]) -> str"));

  m.def(
      "routing_point",
      [](const nb::bytes& model, const nb::bytes& routing_key) {
        return routing_point({model.c_str(), model.size()}, {routing_key.c_str(), routing_key.size()});
      },
      "model"_a, "routing_key"_a);

  bind_servers(m);
}
