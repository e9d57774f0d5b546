package mote;

import java.io.IOException;
import java.security.GeneralSecurityException;
import java.util.function.Consumer;

import org.eclipse.californium.core.CoapClient;
import org.eclipse.californium.core.coap.Request;
import org.eclipse.californium.core.coap.Response;
import org.eclipse.californium.core.config.CoapConfig;
import org.eclipse.californium.core.network.CoapEndpoint;
import org.eclipse.californium.elements.config.Configuration;
import org.eclipse.californium.elements.util.SslContextUtil;
import org.eclipse.californium.elements.util.SslContextUtil.Credentials;
import org.eclipse.californium.scandium.DTLSConnector;
import org.eclipse.californium.scandium.config.DtlsConfig;
import org.eclipse.californium.scandium.config.DtlsConfig.DtlsRole;
import org.eclipse.californium.scandium.config.DtlsConnectorConfig;
import org.eclipse.californium.scandium.dtls.CertificateType;
import org.eclipse.californium.scandium.dtls.pskstore.AdvancedSinglePskStore;
import org.eclipse.californium.scandium.dtls.x509.SingleCertificateProvider;
import org.eclipse.californium.scandium.dtls.x509.StaticNewAdvancedCertificateVerifier;

/** An endpoint of Californium, and the URI of the function that it calls. */
final class Caller implements AutoCloseable {
	/** Longest wait for an answer. */
	static final long PATIENCE_MS = 30_000;
	/** Bytes of a body; the library's own limit is 8 KiB. */
	private static final int BODY_BYTES_MAX = 64 << 10;

	static {
		CoapConfig.register();
		DtlsConfig.register();
	}

	final String uri;
	final CoapEndpoint endpoint;
	/** Null for plain CoAP. */
	final DTLSConnector connector;

	private Caller(String uri, Configuration configuration, DTLSConnector connector) throws IOException {
		CoapEndpoint.Builder builder = CoapEndpoint.builder().setConfiguration(configuration);
		if (connector != null) {
			builder.setConnector(connector);
		}
		this.uri = uri;
		this.connector = connector;
		this.endpoint = builder.build();
		this.endpoint.start();
	}

	static Caller plain(String uri) throws IOException {
		return new Caller(uri, configuration(), null);
	}

	/** With everything else as the library has it by default. */
	static Caller secured(String uri, String identity, String key) throws IOException {
		return secured(uri, identity, key, settings -> { });
	}

	static Caller secured(String uri, String identity, String key, Consumer<DtlsConnectorConfig.Builder> settings)
			throws IOException {
		Configuration configuration = configuration();
		DtlsConnectorConfig.Builder builder = DtlsConnectorConfig.builder(configuration)
				.set(DtlsConfig.DTLS_ROLE, DtlsRole.CLIENT_ONLY)
				.setAdvancedPskStore(new AdvancedSinglePskStore(identity, key.getBytes()));
		settings.accept(builder);
		return new Caller(uri, configuration, new DTLSConnector(builder.build()));
	}

	/** With the certificates in these files (PEM); <code>own</code> is null if the client has none. */
	static Caller certified(String uri, String trusted, String own) throws IOException, GeneralSecurityException {
		Configuration configuration = configuration();
		DtlsConnectorConfig.Builder builder = DtlsConnectorConfig.builder(configuration)
				.set(DtlsConfig.DTLS_ROLE, DtlsRole.CLIENT_ONLY)
				.setAdvancedCertificateVerifier(StaticNewAdvancedCertificateVerifier.builder()
						.setTrustedCertificates(SslContextUtil.loadTrustedCertificates(trusted, null, null))
						.build());
		if (own != null) {
			Credentials credentials = SslContextUtil.loadCredentials(own, null, null, null);
			builder.setCertificateIdentityProvider(new SingleCertificateProvider(credentials.getPrivateKey(),
					credentials.getCertificateChain(), CertificateType.X_509));
		}
		return new Caller(uri, configuration, new DTLSConnector(builder.build()));
	}

	private static Configuration configuration() {
		return new Configuration().set(CoapConfig.MAX_RESOURCE_BODY_SIZE, BODY_BYTES_MAX);
	}

	/** A client for what it offers itself, such as observation. */
	CoapClient client(String path) {
		CoapClient client = new CoapClient(uri + path);
		client.setEndpoint(endpoint);
		client.setTimeout(PATIENCE_MS);
		return client;
	}

	/** The answer to a request of this path below the function, which begins with a slash or is empty. */
	Response call(Request request, String path) throws Exception {
		return send(request.setURI(uri + path), PATIENCE_MS);
	}

	/** The answer to a request that has a URI; fails if there is none within this time. */
	Response send(Request request, long patienceMs) throws Exception {
		request.send(endpoint);
		Response response = request.waitForResponse(patienceMs);
		if (response != null) {
			return response;
		}
		if (request.getSendError() != null) {
			throw new IOException("not sent: " + request.getSendError(), request.getSendError());
		}
		throw new IOException(request.isRejected() ? "reset" : "no answer");
	}

	/** The payload of the answer to a GET. */
	String get(String path) throws Exception {
		return call(Request.newGet(), path).getPayloadString();
	}

	@Override
	public void close() {
		endpoint.destroy();
	}
}
