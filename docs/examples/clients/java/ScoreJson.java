// Scores two rows by KServe v1 in JSON, with Java's own library alone (11 or newer): java ScoreJson.java

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;

public final class ScoreJson {
  public static void main(String[] arguments) throws Exception {
    String address = arguments.length > 0 ? arguments[0] : "http://127.0.0.1:8000";
    String rows =
        "{\"instances\": [{\"words\": [1, 2, 99], \"dense\": [0.5, 0.25]},"
            + " {\"words\": [4, 5, 6], \"dense\": [0.5, 0.25]}]}";

    // One client for the life of the process: it keeps connections open. The server speaks HTTP/1.1.
    HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    HttpRequest request =
        HttpRequest.newBuilder(URI.create(address + "/v1/models/tiny:predict"))
            .header("Content-Type", "application/json")
            .timeout(Duration.ofSeconds(2))
            .POST(HttpRequest.BodyPublishers.ofString(rows))
            .build();
    HttpResponse<String> response = client.send(request, HttpResponse.BodyHandlers.ofString());
    if (response.statusCode() != 200) {
      System.err.println(response.statusCode() + ": " + response.body());
      System.exit(1);
    }
    // {"predictions": [a number a row]}: a JSON library of yours reads it.
    System.out.println(response.body());
    System.err.println("snapshot " + response.headers().firstValue("Emberline-Snapshot").orElse("?"));
  }
}
