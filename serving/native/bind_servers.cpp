// The Python face of the servers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "http_server.h"
#ifdef EMBERLINE_GRPC
#include "grpc_server.h"
#endif

namespace nb = nanobind;
using namespace nb::literals;
using namespace emberline::front;

void bind_servers(nb::module_& m) {
  nb::class_<Routes>(m, "Routes")
      .def(nb::init<>())
      .def(
          "set",
          [](Routes& self, const std::string& path, std::shared_ptr<Model> model, std::shared_ptr<Model> canary,
             double share) {
            if (model == nullptr) return self.set(path, nullptr);
            self.set(path, std::make_shared<Route>(Route{std::move(model), std::move(canary), share}));
          },
          "path"_a, "model"_a.none(), "canary"_a.none() = nb::none(), "share"_a = 0.0);

  nb::class_<Rates>(m, "Rates")
      .def(nb::init<std::size_t>(), "max_clients"_a)
      .def("take", &Rates::take, "client"_a, "rate"_a, "now_s"_a)
      .def_prop_ro("clients", &Rates::clients);

  nb::class_<Callers>(m, "Callers")
      .def(nb::init<std::shared_ptr<Rates>, bool>(), "rates"_a, "is_open"_a)
      .def(
          "let_in",
          [](Callers& self, const nb::bytes& authorization, std::string_view model, std::string name, double rate,
             bool by_address, double expires_s) {
            self.let_in({authorization.c_str(), authorization.size()}, model,
                        {std::move(name), rate, by_address, expires_s, {}});
          },
          "authorization"_a, "model"_a, "name"_a, "rate"_a, "by_address"_a, "expires_s"_a)
      .def("forget", &Callers::forget);

  nb::class_<ServerOptions>(m, "ServerOptions")
      .def(nb::init<>())
      .def_rw("max_body_bytes", &ServerOptions::max_body_bytes)
      .def_rw("max_inflight_bytes", &ServerOptions::max_inflight_bytes)
      .def_rw("max_connections", &ServerOptions::max_connections)
      .def_rw("connections_per_address", &ServerOptions::connections_per_address)
      .def_rw("last_descriptor", &ServerOptions::last_descriptor)
      .def_rw("body_timeout_ns", &ServerOptions::body_timeout_ns)
      .def_rw("keep_alive_ns", &ServerOptions::keep_alive_ns)
      .def_rw("linger_ns", &ServerOptions::linger_ns)
      .def_rw("overloaded_status", &ServerOptions::overloaded_status)
      .def_rw("late_status", &ServerOptions::late_status)
      .def_rw("expired_status", &ServerOptions::expired_status)
      .def_rw("late", &ServerOptions::late)
      .def_rw("expired", &ServerOptions::expired)
      .def_rw("too_many_bytes", &ServerOptions::too_many_bytes)
      .def_rw("too_many_connections", &ServerOptions::too_many_connections)
      .def_rw("too_many_of_address", &ServerOptions::too_many_of_address)
      .def_rw("callers", &ServerOptions::callers, nb::arg().none())
      .def_rw("observer", &ServerOptions::observer, nb::arg().none());

  nb::class_<Server>(m, "Server")
      .def(
          "take_missed",
          [](Server& self) {
            nb::list found;
            for (const Missed& each : self.take_missed()) {
              found.append(nb::make_tuple(each.model->key(), each.canary, each.took_ns, static_cast<int>(each.why)));
            }
            return found;
          },
          nb::sig("def take_missed(self) -> list[tuple[int, bool, int, int]]"))
      .def("retire", &Server::retire)
      .def("drain", &Server::drain)
      .def("stop", &Server::stop, nb::call_guard<nb::gil_scoped_release>())
      .def("stuck", &Server::stuck, nb::sig("def stuck(self) -> list[tuple[str, int]]"))
      .def_prop_ro("connections", &Server::connections)
      .def_prop_ro("in_flight", &Server::in_flight)
      .def_prop_ro("answered", &Server::answered)
      .def_prop_ro("passed_on", &Server::passed_on);

  nb::class_<HttpServer, Server>(m, "HttpServer")
      .def(nb::init<ServerOptions, std::shared_ptr<Routes>, int, int>(), "options"_a, "routes"_a, "listener"_a,
           "wake_python"_a)
      .def(
          "take_handed_over",
          [](HttpServer& self) {
            nb::list found;
            for (const HandedOver& each : self.take_handed_over()) {
              found.append(nb::make_tuple(each.descriptor, each.ticket, nb::bytes(each.bytes.data(), each.bytes.size()),
                                          each.may_return));
            }
            return found;
          },
          nb::sig("def take_handed_over(self) -> list[tuple[int, int, bytes, bool]]"))
      .def(
          "give_back",
          [](HttpServer& self, std::uint64_t ticket, const nb::bytes& bytes) {
            self.give_back(ticket, std::string(bytes.c_str(), bytes.size()));
          },
          "ticket"_a, "bytes"_a)
      .def("closed", &HttpServer::closed, "ticket"_a);

#ifdef EMBERLINE_GRPC
  nb::class_<GrpcServer, Server>(m, "GrpcServer")
      .def(nb::init<ServerOptions, std::shared_ptr<Routes>, int, int, std::string, std::string>(), "options"_a,
           "routes"_a, "listener"_a, "wake_python"_a, "upstream"_a, "secret"_a);
  m.attr("HAS_GRPC") = true;
#else
  m.attr("GrpcServer") = nb::none();  // so that it can be imported
  m.attr("HAS_GRPC") = false;
#endif
}
