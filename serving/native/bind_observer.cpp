// The Python face of the observer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "observer.h"
#include "queue.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace emberline::front;

namespace {

nb::tuple take(Observer& observer, double timeout_s) {
  thread_local std::string lines;
  std::vector<KeptRequest> kept;
  {
    const nb::gil_scoped_release release;
    observer.take(static_cast<std::int64_t>(timeout_s * 1e9), lines, kept);
  }
  nb::list requests;
  for (KeptRequest& each : kept) requests.append(nb::cast(std::move(each)));
  return nb::make_tuple(nb::bytes(lines.data(), lines.size()), requests);
}

void note(Observer& observer, bool is_grpc, std::string_view call, std::string_view model, std::string_view version,
          std::string_view snapshot, std::string_view id, std::string_view header_id, std::string_view traceparent,
          std::string_view address, std::string_view principal, std::string_view error, int status, std::int64_t rows,
          std::int64_t request_bytes, std::int64_t response_bytes, std::int64_t arrived_ns, std::int64_t queued_ns,
          const BatchStages* stages, bool is_traceable) {
  RequestNote made;
  made.is_grpc = is_grpc;
  made.call = call;
  made.model = model;
  made.version = version;
  made.snapshot = snapshot;
  made.id = id;
  made.header_id = header_id;
  made.traceparent = traceparent;
  made.address = address;
  made.principal = principal;
  made.error = error;
  made.status = status;
  made.rows = rows;
  made.request_bytes = request_bytes;
  made.response_bytes = response_bytes;
  made.arrived_ns = arrived_ns;
  made.queued_ns = queued_ns;
  made.ended_ns = now_ns();
  made.stages = stages;
  made.is_traceable = is_traceable;
  observer.note(made);
}

}  // namespace

void bind_observer(nb::module_& m) {
  nb::class_<BatchStages>(m, "BatchStages")
      .def(
          "__init__",
          [](BatchStages* self, std::string session, std::int64_t taken_ns, std::int64_t begun_ns,
             std::int64_t features_ns, std::int64_t lookup_ns, std::int64_t graph_ns, std::int64_t read_ns,
             std::int64_t rows, std::int64_t requests, std::int64_t hbm, std::int64_t overlay, std::int64_t dram,
             std::int64_t ssd, std::int64_t absent, std::int64_t unresolved) {
            new (self)
                BatchStages{std::move(session), taken_ns, begun_ns, features_ns, lookup_ns, graph_ns, read_ns,   rows,
                            requests,           hbm,      overlay,  dram,        ssd,       absent,   unresolved};
          },
          "session"_a, "taken_ns"_a, "begun_ns"_a, "features_ns"_a, "lookup_ns"_a, "graph_ns"_a, "read_ns"_a, "rows"_a,
          "requests"_a, "hbm"_a, "overlay"_a, "dram"_a, "ssd"_a, "absent"_a, "unresolved"_a)
      .def_ro("session", &BatchStages::session)
      .def_ro("taken_ns", &BatchStages::taken_ns)
      .def_ro("begun_ns", &BatchStages::begun_ns)
      .def_ro("features_ns", &BatchStages::features_ns)
      .def_ro("lookup_ns", &BatchStages::lookup_ns)
      .def_ro("graph_ns", &BatchStages::graph_ns)
      .def_ro("read_ns", &BatchStages::read_ns)
      .def_ro("rows", &BatchStages::rows)
      .def_ro("requests", &BatchStages::requests)
      .def_ro("hbm", &BatchStages::hbm)
      .def_ro("overlay", &BatchStages::overlay)
      .def_ro("dram", &BatchStages::dram)
      .def_ro("ssd", &BatchStages::ssd)
      .def_ro("absent", &BatchStages::absent)
      .def_ro("unresolved", &BatchStages::unresolved);

  nb::class_<KeptRequest>(m, "KeptRequest")
      .def_ro("is_grpc", &KeptRequest::is_grpc)
      .def_ro("is_native", &KeptRequest::is_native)
      .def_ro("is_slow", &KeptRequest::is_slow)
      .def_ro("is_sampled", &KeptRequest::is_sampled)
      .def_ro("call", &KeptRequest::call)
      .def_ro("model", &KeptRequest::model)
      .def_ro("version", &KeptRequest::version)
      .def_ro("snapshot", &KeptRequest::snapshot)
      .def_ro("id", &KeptRequest::id)
      .def_ro("header_id", &KeptRequest::header_id)
      .def_ro("address", &KeptRequest::address)
      .def_ro("principal", &KeptRequest::principal)
      .def_ro("error", &KeptRequest::error)
      .def_ro("trace_id", &KeptRequest::trace_id)
      .def_ro("parent_id", &KeptRequest::parent_id)
      .def_ro("status", &KeptRequest::status)
      .def_ro("rows", &KeptRequest::rows)
      .def_ro("request_bytes", &KeptRequest::request_bytes)
      .def_ro("response_bytes", &KeptRequest::response_bytes)
      .def_ro("arrived_ns", &KeptRequest::arrived_ns)
      .def_ro("queued_ns", &KeptRequest::queued_ns)
      .def_ro("ended_ns", &KeptRequest::ended_ns)
      .def_prop_ro(
          "stages", [](const KeptRequest& self) { return self.has_stages ? &self.stages : nullptr; },
          nb::rv_policy::reference_internal, nb::sig("def stages(self) -> BatchStages | None"));

  nb::class_<Observer>(m, "Observer")
      .def(nb::init<std::size_t, std::size_t>(), "max_line_bytes"_a, "max_kept"_a)
      .def(
          "set",
          [](Observer& self, bool has_lines, bool is_json, std::int64_t slow_ns, bool is_tracing, double sampling,
             bool keeps_all) { self.set({has_lines, is_json, slow_ns, is_tracing, sampling, keeps_all}); },
          nb::kw_only(), "has_lines"_a, "is_json"_a, "slow_ns"_a, "is_tracing"_a, "sampling"_a, "keeps_all"_a)
      .def_prop_ro("is_on", &Observer::is_on)
      .def("note", &note, nb::kw_only(), "is_grpc"_a, "call"_a, "model"_a, "version"_a, "snapshot"_a, "id"_a,
           "header_id"_a, "traceparent"_a, "address"_a, "principal"_a, "error"_a, "status"_a, "rows"_a,
           "request_bytes"_a, "response_bytes"_a, "arrived_ns"_a, "queued_ns"_a, "stages"_a.none(), "is_traceable"_a)
      .def("take", &take, "timeout_s"_a, nb::sig("def take(self, timeout_s: float) -> tuple[bytes, list[KeptRequest]]"))
      .def("stop", &Observer::stop)
      .def_prop_ro("dropped_lines", &Observer::dropped_lines)
      .def_prop_ro("dropped_requests", &Observer::dropped_requests);
}
