package mote;

import static mote.Client.check;
import static mote.Client.expect;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

import org.eclipse.californium.core.coap.BlockOption;
import org.eclipse.californium.core.coap.Request;
import org.eclipse.californium.core.coap.Response;
import org.eclipse.californium.elements.DtlsEndpointContext;
import org.eclipse.californium.elements.EndpointContext;
import org.eclipse.californium.elements.MapBasedEndpointContext;
import org.eclipse.californium.elements.MapBasedEndpointContext.Attributes;
import org.eclipse.californium.scandium.config.DtlsConfig;
import org.eclipse.californium.scandium.config.DtlsConfig.DtlsSecureRenegotiation;
import org.eclipse.californium.scandium.config.DtlsConnectorConfig;
import org.eclipse.californium.scandium.dtls.DtlsHandshakeTimeoutException;
import org.eclipse.californium.scandium.dtls.ExtendedMasterSecretMode;
import org.eclipse.californium.scandium.dtls.MaxFragmentLengthExtension.Length;

/** Handshakes of DTLS with pre-shared keys. */
final class Sessions {
	private static final int LARGE_BYTES = 20_003;
	/** How long a client waits that has a session which the node does not have. */
	private static final long LOST_MS = 1_000;

	private final String uri;
	private final String identity;
	private final String key;

	Sessions(String uri, String identity, String key) {
		this.uri = uri;
		this.identity = identity;
		this.key = key;
	}

	void run() throws Exception {
		opens("extensions by default", settings -> { });
		opens("connection id", settings -> settings.set(DtlsConfig.DTLS_CONNECTION_ID_LENGTH, 6));
		opens("empty connection id", settings -> settings.set(DtlsConfig.DTLS_CONNECTION_ID_LENGTH, 0));
		opens("record size limit", settings -> settings.set(DtlsConfig.DTLS_RECORD_SIZE_LIMIT, 512));
		opens("maximum fragment length of 1024 bytes",
				settings -> settings.set(DtlsConfig.DTLS_MAX_FRAGMENT_LENGTH, Length.BYTES_1024));
		// With this setting the library cannot read a longer datagram, although the node has not agreed to it.
		opens("maximum fragment length of 512 bytes", get(256),
				settings -> settings.set(DtlsConfig.DTLS_MAX_FRAGMENT_LENGTH, Length.BYTES_512));
		opens("server name", settings -> settings.set(DtlsConfig.DTLS_USE_SERVER_NAME_INDICATION, true));
		opens("secure renegotiation",
				settings -> settings.set(DtlsConfig.DTLS_SECURE_RENEGOTIATION, DtlsSecureRenegotiation.NEEDED));
		opens("required extended master secret", settings -> settings
				.set(DtlsConfig.DTLS_EXTENDED_MASTER_SECRET_MODE, ExtendedMasterSecretMode.REQUIRED));
		opens("all cipher suites", settings -> settings.set(DtlsConfig.DTLS_RECOMMENDED_CIPHER_SUITES_ONLY, false));
		opens("several messages in a record",
				settings -> settings.set(DtlsConfig.DTLS_USE_MULTI_HANDSHAKE_MESSAGE_RECORDS, true));
		opens("one message in a record", settings -> settings
				.set(DtlsConfig.DTLS_USE_MULTI_HANDSHAKE_MESSAGE_RECORDS, false)
				.set(DtlsConfig.DTLS_USE_MULTI_RECORD_MESSAGES, false));
		refuses("wrong key", identity, "0".repeat(32), settings -> { });
		refuses("unknown identity", "nobody.01234567", key, settings -> { });
		refuses("no extended master secret", identity, key, settings -> settings
				.set(DtlsConfig.DTLS_EXTENDED_MASTER_SECRET_MODE, ExtendedMasterSecretMode.NONE));
		check("closed session", this::closed);
		check("resumption", () -> again(DtlsEndpointContext.ATTRIBUTE_HANDSHAKE_MODE_FORCE));
		check("resumption that probes", () -> again(DtlsEndpointContext.ATTRIBUTE_HANDSHAKE_MODE_PROBE));
		check("full handshake in a session", () -> again(new Attributes()
				.add(DtlsEndpointContext.KEY_HANDSHAKE_MODE, DtlsEndpointContext.HANDSHAKE_MODE_FORCE_FULL)));
		check("client that restarts at its port", this::restarted);
		lost();
	}

	/** With these settings a handshake succeeds, and an answer in blocks arrives. */
	private void opens(String name, Consumer<DtlsConnectorConfig.Builder> settings) {
		opens(name, Request.newGet(), settings);
	}

	private void opens(String name, Request request, Consumer<DtlsConnectorConfig.Builder> settings) {
		check(name, () -> {
			try (Caller caller = Caller.secured(uri, identity, key, settings)) {
				Response response = caller.call(request, "/large");
				expect(LARGE_BYTES, response.getPayloadSize());
				EndpointContext session = response.getSourceContext();
				expect("TLS_PSK_WITH_AES_128_CCM_8", session.get(DtlsEndpointContext.KEY_CIPHER));
				expect(true, session.get(DtlsEndpointContext.KEY_EXTENDED_MASTER_SECRET));
				expect(null, session.get(DtlsEndpointContext.KEY_READ_CONNECTION_ID));
				expect(null, session.get(DtlsEndpointContext.KEY_WRITE_CONNECTION_ID));
			}
		});
	}

	/** The node answers nothing, so that the handshake ends when its time is over. */
	private void refuses(String name, String identity, String key, Consumer<DtlsConnectorConfig.Builder> settings) {
		Consumer<DtlsConnectorConfig.Builder> impatient = settings.andThen(builder -> builder
				.set(DtlsConfig.DTLS_MAX_RETRANSMISSIONS, 1)
				.set(DtlsConfig.DTLS_RETRANSMISSION_TIMEOUT, 1, TimeUnit.SECONDS));
		check(name, () -> {
			try (Caller caller = Caller.secured(uri, identity, key, impatient)) {
				Throwable found = null;
				try {
					get(caller, "");
				} catch (IOException error) {
					found = error.getCause();
				}
				expect(DtlsHandshakeTimeoutException.class, found == null ? null : found.getClass());
			}
		});
	}

	/** A client that has closed its session begins another one from the same port. */
	private void closed() throws Exception {
		try (Caller caller = Caller.secured(uri, identity, key)) {
			Response first = get(caller, "");
			caller.connector.close(first.getSourceContext().getPeerAddress());
			expectOther(first, get(caller, ""));
		}
	}

	/** The node gives its sessions no id, so a client that wants to resume one begins another one. */
	private void again(Attributes mode) throws Exception {
		try (Caller caller = Caller.secured(uri, identity, key)) {
			Response first = get(caller, "");
			expectOther(first, handshake(caller, mode));
			expect(LARGE_BYTES, get(caller, "/large").getPayloadSize());
		}
	}

	/** A client that has lost its session, and has not closed it, begins another one from its port. */
	private void restarted() throws Exception {
		InetSocketAddress own;
		Response first;
		try (Caller caller = Caller.secured(uri, identity, key)) {
			first = get(caller, "");
			own = caller.endpoint.getAddress();
		}
		try (Caller caller = Caller.secured(uri, identity, key, settings -> settings.setAddress(own))) {
			expectOther(first, get(caller, ""));
			expect(own.getPort(), caller.endpoint.getAddress().getPort());
		}
	}

	/** The node loses its sessions while this program waits for a line. */
	private void lost() throws Exception {
		Consumer<DtlsConnectorConfig.Builder> renewing = settings -> settings
				.set(DtlsConfig.DTLS_AUTO_HANDSHAKE_TIMEOUT, 1, TimeUnit.MILLISECONDS);
		try (Caller caller = Caller.secured(uri, identity, key);
				Caller silent = Caller.secured(uri, identity, key, renewing)) {
			Response first = get(caller, "");
			Response before = get(silent, "");
			check("waits", () -> { });
			expect((int) '\n', System.in.read());
			check("lost session", () -> {
				String found = "an answer";
				try {
					caller.send(Request.newGet().setURI(uri), LOST_MS);
				} catch (IOException error) {
					found = error.getMessage();
				}
				expect("no answer", found);
				expectOther(first, handshake(caller, DtlsEndpointContext.ATTRIBUTE_HANDSHAKE_MODE_FORCE));
			});
			check("lost session after a silence", () -> expectOther(before, get(silent, "")));
		}
	}

	private static Response get(Caller caller, String path) throws Exception {
		return caller.call(Request.newGet(), path);
	}

	/** Asks for blocks of this size. */
	private static Request get(int blockBytes) {
		Request request = Request.newGet();
		request.getOptions().setBlock2(new BlockOption(BlockOption.size2Szx(blockBytes), false, 0));
		return request;
	}

	/** Calls in a new session, which the client begins although it has one. */
	private Response handshake(Caller caller, Attributes mode) throws Exception {
		Request request = Request.newGet().setURI(uri);
		request.setDestinationContext(MapBasedEndpointContext.addEntries(request.getDestinationContext(), mode));
		return caller.send(request, Caller.PATIENCE_MS);
	}

	/** Fails if both are of one session. */
	private static void expectOther(Response first, Response second) {
		expect(first.getPayloadString(), second.getPayloadString());
		Long before = first.getSourceContext().get(DtlsEndpointContext.KEY_HANDSHAKE_TIMESTAMP);
		Long after = second.getSourceContext().get(DtlsEndpointContext.KEY_HANDSHAKE_TIMESTAMP);
		expect(true, after > before);
	}
}
