import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Executors;

/** The server of the JDK; this needs a JDK of version 11 or newer. */
public class Hello {
    public static void main(String[] arguments) throws IOException {
        int port = Integer.parseInt(System.getenv("PORT"));
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
        server.createContext("/", exchange -> answer(exchange, "hello from Java"));
        server.createContext("/upper", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            answer(exchange, new String(body, StandardCharsets.UTF_8).toUpperCase());
        });
        server.setExecutor(Executors.newCachedThreadPool());
        server.start();
    }

    private static void answer(HttpExchange exchange, String text) throws IOException {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        exchange.getResponseHeaders().set("content-type", "text/plain");
        exchange.sendResponseHeaders(200, bytes.length);
        exchange.getResponseBody().write(bytes);
        exchange.close();
    }
}
