package mote;

import java.util.Objects;

/**
 * Calls a node with Eclipse Californium, and prints a line for each exchange: <code>NAME: ok</code>, or what
 * was wrong. tests/tests/californium.rs deploys the function that it calls, builds this program, and runs it:
 *
 * <pre>
 * exchanges URI CALLER [IDENTITY KEY]   what CoAP offers; URI is that of the function
 * certified URI CALLER TRUSTED [OWN]    the same with certificates; TRUSTED is a file with that of the node, and
 *                                       OWN one with that of the client and its key
 * proofs URI                            plain CoAP from another machine
 * sessions URI IDENTITY KEY             handshakes of DTLS; after "waits: ok", the caller makes the node lose its
 *                                       sessions, and then writes a line
 * </pre>
 */
public final class Client {
	/** One exchange; it fails with an exception. */
	interface Exchange {
		void run() throws Exception;
	}

	private Client() {
	}

	public static void main(String[] args) throws Exception {
		String uri = args[1];
		switch (args[0]) {
			case "exchanges":
				boolean isPlain = uri.startsWith("coap:");
				try (Caller caller = isPlain ? Caller.plain(uri) : Caller.secured(uri, args[3], args[4])) {
					new Exchanges(caller, args[2]).run();
				}
				break;
			case "certified":
				try (Caller caller = Caller.certified(uri, args[3], args.length > 4 ? args[4] : null)) {
					new Exchanges(caller, args[2]).run();
				}
				break;
			case "proofs":
				new Proofs(uri).run();
				break;
			case "sessions":
				new Sessions(uri, args[2], args[3]).run();
				break;
			default:
				throw new IllegalArgumentException(args[0]);
		}
		// Threads of the library that wait for later must not keep the program.
		System.exit(0);
	}

	/** Runs an exchange and prints its line. */
	static void check(String name, Exchange exchange) {
		String result = "ok";
		try {
			exchange.run();
		} catch (Exception error) {
			result = error.toString().replace('\n', ' ');
		}
		System.out.println(name + ": " + result);
	}

	/** Fails unless both are equal. */
	static void expect(Object expected, Object found) {
		if (!Objects.equals(expected, found)) {
			throw new IllegalStateException("expected " + expected + ", found " + found);
		}
	}
}
