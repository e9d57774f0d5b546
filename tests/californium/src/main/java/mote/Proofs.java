package mote;

import static mote.Client.check;
import static mote.Client.expect;

import java.io.IOException;
import java.util.List;

import org.eclipse.californium.core.coap.CoAP.ResponseCode;
import org.eclipse.californium.core.coap.Option;
import org.eclipse.californium.core.coap.Request;
import org.eclipse.californium.core.coap.Response;
import org.eclipse.californium.core.coap.option.StandardOptionRegistry;

/**
 * Plain CoAP from another machine, whose address the node does not trust at first (RFC 9175). The library knows
 * the option Echo, but leaves it to the program to repeat a request with it.
 */
final class Proofs {
	private static final int LARGE_BYTES = 20_003;
	private static final int SAME_BYTES = 2_000;

	private final String uri;

	Proofs(String uri) {
		this.uri = uri;
	}

	void run() throws IOException {
		try (Caller caller = Caller.plain(uri)) {
			check("short answer without a proof", () -> expect("GET None 0", caller.get("")));
			check("POST in blocks without a proof", () -> {
				String body = "y".repeat(SAME_BYTES);
				Response response = caller.call(Request.newPost().setPayload(body), "/same");
				expect(body, response.getPayloadString());
			});
			check("proof", () -> {
				Response refused = caller.call(Request.newGet(), "/large");
				expect(ResponseCode.UNAUTHORIZED, refused.getCode());
				List<Option> echo = refused.getOptions().getOthers(StandardOptionRegistry.ECHO);
				expect(1, echo.size());
				Request again = Request.newGet();
				again.getOptions().addOtherOption(echo.get(0));
				expect(LARGE_BYTES, caller.call(again, "/large").getPayloadSize());
			});
			check("long answer after the proof", () -> expect(LARGE_BYTES, caller.get("/large").length()));
			new Exchanges(caller, "None").runObservations();
		}
	}
}
