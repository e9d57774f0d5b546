package mote;

import static mote.Client.check;
import static mote.Client.expect;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

import org.eclipse.californium.core.CoapClient;
import org.eclipse.californium.core.CoapHandler;
import org.eclipse.californium.core.CoapObserveRelation;
import org.eclipse.californium.core.CoapResponse;
import org.eclipse.californium.core.WebLink;
import org.eclipse.californium.core.coap.BlockOption;
import org.eclipse.californium.core.coap.CoAP.ResponseCode;
import org.eclipse.californium.core.coap.CoAP.Type;
import org.eclipse.californium.core.coap.MediaTypeRegistry;
import org.eclipse.californium.core.coap.MessageObserverAdapter;
import org.eclipse.californium.core.coap.Option;
import org.eclipse.californium.core.coap.Request;
import org.eclipse.californium.core.coap.Response;
import org.eclipse.californium.core.coap.option.OpaqueOptionDefinition;

/** What CoAP offers, over UDP or DTLS. */
final class Exchanges {
	private static final int LARGE_BYTES = 20_000;
	private static final String LARGE = "y".repeat(LARGE_BYTES);
	private static final byte[] ETAG = { 10, 11 };
	/** Odd, so that a server that does not know it must refuse the request. */
	private static final OpaqueOptionDefinition CRITICAL = new OpaqueOptionDefinition(65_001, "Critical", false);

	private final Caller caller;
	/** The caller that the function sees. */
	private final String name;

	Exchanges(Caller caller, String name) {
		this.caller = caller;
		this.name = name;
	}

	void run() {
		check("GET", () -> told(Request.newGet(), "GET", ResponseCode.CONTENT));
		check("POST", () -> told(Request.newPost(), "POST", ResponseCode.CHANGED));
		check("PUT", () -> told(Request.newPut(), "PUT", ResponseCode.CHANGED));
		check("DELETE", () -> told(Request.newDelete(), "DELETE", ResponseCode.DELETED));
		check("FETCH", () -> told(Request.newFetch(), "FETCH", ResponseCode.CONTENT));
		check("PATCH", () -> told(Request.newPatch(), "PATCH", ResponseCode.CHANGED));
		check("iPATCH", () -> told(Request.newIPatch(), "IPATCH", ResponseCode.CHANGED));
		check("query", () -> expect("a=1&b=x%20y", caller.get("/query?a=1&b=x%20y")));
		check("bytes", this::bytes);
		check("formats", this::formats);
		check("format that does not match", () -> {
			Request request = Request.newGet();
			request.getOptions().setAccept(MediaTypeRegistry.APPLICATION_CBOR);
			expect(ResponseCode.NOT_ACCEPTABLE, caller.call(request, "/json").getCode());
		});
		check("ETag and Max-Age", this::validation);
		check("Location-Path", () -> {
			Response response = caller.call(Request.newPost(), "/created");
			expect(ResponseCode.CREATED, response.getCode());
			expect("open/items/7", response.getOptions().getLocationPathString());
		});
		check("separate answer", this::separate);
		check("non-confirmable", () -> nonConfirmable("/query?n", "n"));
		check("slow non-confirmable", () -> nonConfirmable("/slow", "late"));
		check("several at once", this::several);
		check("upload in blocks", () -> {
			Request request = Request.newPost().setPayload(LARGE);
			expect(LARGE_BYTES, Integer.valueOf(caller.call(request, "/length").getPayloadString()));
		});
		check("download in blocks", () -> expect("x".repeat(LARGE_BYTES) + "end", caller.get("/large")));
		check("blocks in both directions", () -> {
			Request request = Request.newPost().setPayload(LARGE);
			expect(LARGE, caller.call(request, "/same").getPayloadString());
		});
		check("blocks of 64 bytes", () -> {
			Request request = Request.newGet();
			request.getOptions().setBlock2(new BlockOption(BlockOption.size2Szx(64), false, 0));
			expect("x".repeat(LARGE_BYTES) + "end", caller.call(request, "/large").getPayloadString());
		});
		runObservations();
		check("missing function", () -> missing("/nobody", ResponseCode.NOT_FOUND));
		check("unknown critical option", () -> {
			Request request = Request.newGet();
			request.getOptions().addOtherOption(new Option(CRITICAL, new byte[] { 1 }));
			expect(ResponseCode.BAD_OPTION, caller.call(request, "").getCode());
		});
		check("discovery", this::discovery);
		check("ping", () -> expect(true, caller.client("").ping()));
	}

	void runObservations() {
		check("observation", this::observation);
		check("observation that is forgotten", this::forgotten);
	}

	/** The function tells the method, its caller and the length of the body. */
	private void told(Request request, String method, ResponseCode code) throws Exception {
		boolean hasBody = !method.equals("GET") && !method.equals("DELETE");
		if (hasBody) {
			request.setPayload("12345");
		}
		Response response = caller.call(request, "");
		expect(method + " " + name + " " + (hasBody ? 5 : 0), response.getPayloadString());
		expect(code, response.getCode());
		expect(Type.ACK, response.getType());
	}

	private void bytes() throws Exception {
		byte[] all = new byte[256];
		for (int at = 0; at < all.length; at++) {
			all[at] = (byte) at;
		}
		Request request = Request.newPost().setPayload(all);
		request.getOptions().setContentFormat(MediaTypeRegistry.APPLICATION_CBOR);
		Response response = caller.call(request, "/same");
		expect(Arrays.toString(all), Arrays.toString(response.getPayload()));
		expect(MediaTypeRegistry.APPLICATION_CBOR, response.getOptions().getContentFormat());
	}

	private void formats() throws Exception {
		Request request = Request.newPost().setPayload("{}");
		request.getOptions().setContentFormat(MediaTypeRegistry.APPLICATION_JSON);
		request.getOptions().setAccept(MediaTypeRegistry.TEXT_PLAIN);
		Response response = caller.call(request, "/formats");
		expect("application/json text/plain; charset=utf-8", response.getPayloadString());
		expect(MediaTypeRegistry.TEXT_PLAIN, response.getOptions().getContentFormat());
		Response json = caller.call(Request.newGet(), "/json");
		expect(MediaTypeRegistry.APPLICATION_JSON, json.getOptions().getContentFormat());
	}

	private void validation() throws Exception {
		Response first = caller.call(Request.newGet(), "/tagged");
		expect("tagged", first.getPayloadString());
		expect(Arrays.toString(ETAG), Arrays.toString(first.getOptions().getETags().get(0)));
		expect(7L, first.getOptions().getMaxAge());
		Request again = Request.newGet();
		again.getOptions().addETag(ETAG);
		Response second = caller.call(again, "/tagged");
		expect(ResponseCode.VALID, second.getCode());
		expect(0, second.getPayloadSize());
	}

	private void separate() throws Exception {
		AtomicBoolean acknowledged = new AtomicBoolean();
		Request request = Request.newGet();
		request.addMessageObserver(new MessageObserverAdapter() {
			@Override
			public void onAcknowledgement() {
				acknowledged.set(true);
			}
		});
		Response response = caller.call(request, "/slow");
		expect("late", response.getPayloadString());
		expect(Type.CON, response.getType());
		expect(true, acknowledged.get());
	}

	private void nonConfirmable(String path, String expected) throws Exception {
		Request request = Request.newGet();
		request.setType(Type.NON);
		Response response = caller.call(request, path);
		expect(expected, response.getPayloadString());
		expect(Type.NON, response.getType());
	}

	private void several() throws Exception {
		List<Request> requests = new ArrayList<>();
		for (int number = 0; number < 16; number++) {
			requests.add(Request.newGet().setURI(caller.uri + "/query?" + number).send(caller.endpoint));
		}
		for (int number = 0; number < requests.size(); number++) {
			Response response = requests.get(number).waitForResponse(Caller.PATIENCE_MS);
			expect(Integer.toString(number), response == null ? null : response.getPayloadString());
		}
	}

	/** Publishes a state, and returns the number of observers. */
	private int publish(String state) throws Exception {
		Request request = Request.newPost().setPayload(state);
		return Integer.parseInt(caller.call(request, "/notify").getPayloadString());
	}

	private void observation() throws Exception {
		States states = new States();
		CoapClient client = caller.client("/state");
		CoapObserveRelation relation = client.observeAndWait(states);
		expect(false, relation.isCanceled());
		expect("first", states.next());
		for (String state : List.of("one", "two", "three", LARGE)) {
			expect(1, publish(state));
			expect(state, states.next());
		}
		relation.proactiveCancel();
		expect("first", states.next());
		expect(0, publish("unheard"));
		expect(null, states.states.poll());
	}

	/** An observer that has forgotten that it observes rejects the next notification. */
	private void forgotten() throws Exception {
		States states = new States();
		CoapObserveRelation relation = caller.client("/state").observeAndWait(states);
		expect("first", states.next());
		relation.reactiveCancel();
		long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Caller.PATIENCE_MS);
		while (publish("unheard") != 0) {
			expect(true, System.nanoTime() < until);
		}
		expect(null, states.states.poll());
	}

	private void missing(String path, ResponseCode code) throws Exception {
		String root = caller.uri.substring(0, caller.uri.lastIndexOf('/'));
		Request request = Request.newGet().setURI(root + path);
		expect(code, caller.send(request, Caller.PATIENCE_MS).getCode());
	}

	private void discovery() throws Exception {
		String path = caller.uri.substring(caller.uri.lastIndexOf('/'));
		boolean found = false;
		for (WebLink link : caller.client("").discover()) {
			found |= link.getURI().equals(path);
		}
		expect(true, found);
		expect(0, caller.client("").discover("rt=nothing").size());
	}

	/** The states that an observer received. */
	private static final class States implements CoapHandler {
		private final BlockingQueue<String> states = new LinkedBlockingQueue<>();

		@Override
		public void onLoad(CoapResponse response) {
			states.add(response.getResponseText());
		}

		@Override
		public void onError() {
			states.add("error");
		}

		String next() throws InterruptedException {
			return states.poll(Caller.PATIENCE_MS, TimeUnit.MILLISECONDS);
		}
	}
}
