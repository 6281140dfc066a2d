// Scores two rows over gRPC. docs/clients.md says how the package inference is made from Triton's proto.

import com.google.protobuf.ByteString;
import inference.GRPCInferenceServiceGrpc;
import inference.GrpcService.ModelInferRequest;
import inference.GrpcService.ModelInferRequest.InferInputTensor;
import inference.GrpcService.ModelInferResponse;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.StatusRuntimeException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.concurrent.TimeUnit;

public final class ScoreGrpc {
  public static void main(String[] arguments) {
    String address = arguments.length > 0 ? arguments[0] : "127.0.0.1:8001";
    // One channel for the life of the process; any number of threads may call over it.
    ManagedChannel channel = ManagedChannelBuilder.forTarget(address).usePlaintext().build();
    try {
      ModelInferRequest request =
          ModelInferRequest.newBuilder()
              .setModelName("tiny")
              .setId("java-1")
              .addInputs(tensor("words", "INT64", 2, 3))
              .addInputs(tensor("dense", "FP32", 2, 2))
              .addRawInputContents(bytes(new long[] {1, 2, 99, 4, 5, 6}))
              .addRawInputContents(bytes(new float[] {0.5f, 0.25f, 0.5f, 0.25f}))
              .build();

      // The deadline travels with the request: what has waited longer is not computed.
      ModelInferResponse response =
          GRPCInferenceServiceGrpc.newBlockingStub(channel)
              .withDeadlineAfter(2, TimeUnit.SECONDS)
              .modelInfer(request);

      ByteBuffer scores =
          response.getRawOutputContents(0).asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
      while (scores.hasRemaining()) {
        System.out.println(scores.getFloat());
      }
      String snapshot = response.getParametersOrThrow("snapshot").getStringParam();
      System.err.println("request " + response.getId() + ", snapshot " + snapshot);
    } catch (StatusRuntimeException error) {
      System.err.println(error.getStatus().getCode() + ": " + error.getStatus().getDescription());
      System.exit(1);
    } finally {
      channel.shutdownNow();
    }
  }

  private static InferInputTensor tensor(String name, String datatype, long... shape) {
    InferInputTensor.Builder made = InferInputTensor.newBuilder().setName(name).setDatatype(datatype);
    for (long size : shape) {
      made.addShape(size);
    }
    return made.build();
  }

  private static ByteString bytes(long[] values) {
    ByteBuffer buffer = ByteBuffer.allocate(values.length * Long.BYTES).order(ByteOrder.LITTLE_ENDIAN);
    buffer.asLongBuffer().put(values);
    return ByteString.copyFrom(buffer);
  }

  private static ByteString bytes(float[] values) {
    ByteBuffer buffer = ByteBuffer.allocate(values.length * Float.BYTES).order(ByteOrder.LITTLE_ENDIAN);
    buffer.asFloatBuffer().put(values);
    return ByteString.copyFrom(buffer);
  }
}
