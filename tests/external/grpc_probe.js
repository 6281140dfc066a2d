// The gRPC health protocol by grpc-js and its own copy of the proto: node grpc_probe.js ADDRESS; ends with 1 when it is
// not SERVING, or when a service that there is not has another status than NOT_FOUND.

const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const { protoPath } = require("grpc-health-check");

const { grpc: found } = grpc.loadPackageDefinition(loader.loadSync(protoPath, { enums: String }));
const client = new found.health.v1.Health(process.argv[2], grpc.credentials.createInsecure());
const deadline = () => new Date(Date.now() + 10000);

function check(service) {
  return new Promise((done) =>
    client.Check({ service }, { deadline: deadline() }, (error, said) => done(error ? grpc.status[error.code] : said.status)),
  );
}

function watch() {
  return new Promise((done) => {
    const call = client.Watch({ service: "" }, { deadline: deadline() });
    call.on("data", (said) => {
      done(said.status);
      call.cancel();
    });
    call.on("error", (error) => done(grpc.status[error.code]));
  });
}

(async () => {
  const got = [await check(""), await check("inference.GRPCInferenceService"), await check("none"), await watch()];
  const ok = JSON.stringify(got) === JSON.stringify(["SERVING", "SERVING", "NOT_FOUND", "SERVING"]);
  if (!ok) console.log(got.join(" "));
  process.exit(ok ? 0 : 1);
})();
