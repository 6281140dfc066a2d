// What Java's own HttpClient does to a server: it offers HTTP/2 with every first request, also with one that has a body.
// java tests/external/JavaCalls.java PORT; prints what was answered wrongly, and ends with 1 then.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

public class JavaCalls {
    static final String BODY = "{\"inputs\":[{\"name\":\"in_A\",\"shape\":[1,4],\"datatype\":\"FP32\",\"data\":[1,2,3,4]}]}";
    static int wrong = 0;

    static void expect(String what, boolean holds, Object got) {
        if (!holds) {
            wrong++;
            System.out.println(what + ": " + got);
        }
    }

    static HttpRequest infer(String base, BodyPublisher body) {
        return HttpRequest.newBuilder(URI.create(base + "/v2/models/echo/infer")).timeout(Duration.ofSeconds(20))
            .header("Content-Type", "application/json").POST(body).build();
    }

    public static void main(String[] arguments) throws Exception {
        String base = "http://127.0.0.1:" + arguments[0];
        for (HttpClient.Version version : HttpClient.Version.values()) {
            HttpClient client = HttpClient.newBuilder().version(version).build();
            for (BodyPublisher body : List.of(BodyPublishers.ofString(BODY),
                    BodyPublishers.fromPublisher(BodyPublishers.ofString(BODY)))) {
                HttpResponse<String> answer = client.send(infer(base, body), BodyHandlers.ofString());
                expect(version + " infer", answer.statusCode() == 200 && answer.body().contains("[1.0,2.0,3.0,4.0]"), answer + answer.body());
            }
            HttpRequest live = HttpRequest.newBuilder(URI.create(base + "/v2/health/live")).build();
            expect(version + " live", client.send(live, BodyHandlers.ofString()).statusCode() == 200, "no 200");
            HttpRequest head = HttpRequest.newBuilder(URI.create(base + "/v2")).method("HEAD", BodyPublishers.noBody()).build();
            HttpResponse<String> answer = client.send(head, BodyHandlers.ofString());
            expect(version + " HEAD", answer.statusCode() == 200 && answer.body().isEmpty(), answer);
            HttpRequest expecting = HttpRequest.newBuilder(URI.create(base + "/v2/models/echo/infer")).expectContinue(true)
                .timeout(Duration.ofSeconds(20)).POST(BodyPublishers.ofString(BODY)).build();
            expect(version + " Expect", client.send(expecting, BodyHandlers.ofString()).statusCode() == 200, "no 200");
            List<CompletableFuture<HttpResponse<String>>> many = new ArrayList<>();
            for (int i = 0; i < 200; i++) {
                many.add(client.sendAsync(infer(base, BodyPublishers.ofString(BODY)), BodyHandlers.ofString()));
            }
            for (CompletableFuture<HttpResponse<String>> each : many) {
                expect(version + " at once", each.get().statusCode() == 200, each.get());
            }
        }
        System.exit(wrong == 0 ? 0 : 1);
    }
}
