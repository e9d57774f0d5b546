// A CoAP client on libcoap that sends N confirmable POSTs over one session, each after the answer to
// the one before. It is used to count the bytes of calls.
// Usage: coap_client SCHEME ADDRESS PORT PATH BODY N [IDENTITY KEY]
#include <arpa/inet.h>
#include <coap3/coap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 10000 };

static int answered;
static int failed;

static coap_response_t on_answer(coap_session_t *session, const coap_pdu_t *sent,
                                 const coap_pdu_t *received, const coap_mid_t id) {
  (void)session, (void)sent, (void)id;
  answered++;
  if (COAP_RESPONSE_CLASS(coap_pdu_get_code(received)) != 2) failed++;
  return COAP_RESPONSE_OK;
}

static coap_session_t *open_session(coap_context_t *context, const coap_address_t *to,
                                    coap_proto_t protocol, char **arguments, int count) {
  if (protocol == COAP_PROTO_UDP || protocol == COAP_PROTO_TCP) {
    return coap_new_client_session(context, NULL, to, protocol);
  }
  if (count == 2) {
    return coap_new_client_session_psk(context, NULL, to, protocol, arguments[0],
                                       (const uint8_t *)arguments[1], (unsigned)strlen(arguments[1]));
  }
  coap_dtls_pki_t anyone = {.version = COAP_DTLS_PKI_SETUP_VERSION};
  return coap_new_client_session_pki(context, NULL, to, protocol, &anyone);
}

int main(int argc, char **argv) {
  static const struct {
    const char *scheme;
    coap_proto_t protocol;
  } known[] = {{"coap", COAP_PROTO_UDP},
               {"coap+tcp", COAP_PROTO_TCP},
               {"coaps", COAP_PROTO_DTLS},
               {"coaps+tcp", COAP_PROTO_TLS}};
  if (argc != 7 && argc != 9) return 2;
  coap_proto_t protocol = COAP_PROTO_NONE;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (!strcmp(argv[1], known[i].scheme)) protocol = known[i].protocol;
  }
  const char *body = argv[5];
  int calls = atoi(argv[6]);
  coap_startup();
  coap_context_t *context = coap_new_context(NULL);
  coap_address_t to;
  coap_address_init(&to);
  to.size = sizeof to.addr.sin;
  to.addr.sin.sin_family = AF_INET;
  to.addr.sin.sin_port = htons((unsigned short)atoi(argv[3]));
  if (!context || inet_pton(AF_INET, argv[2], &to.addr.sin.sin_addr) != 1) return 2;
  coap_session_t *session = open_session(context, &to, protocol, argv + 7, argc - 7);
  if (!session) return 1;
  coap_register_response_handler(context, on_answer);
  for (int call = 0; call < calls; call++) {
    coap_pdu_t *pdu = coap_new_pdu(COAP_MESSAGE_CON, COAP_REQUEST_CODE_POST, session);
    uint8_t token[8], format[1] = {COAP_MEDIATYPE_APPLICATION_JSON};
    size_t length;
    coap_session_new_token(session, &length, token);
    coap_add_token(pdu, length, token);
    coap_add_option(pdu, COAP_OPTION_URI_PATH, strlen(argv[4]), (const uint8_t *)argv[4]);
    coap_add_option(pdu, COAP_OPTION_CONTENT_FORMAT, 1, format);
    coap_add_data(pdu, strlen(body), (const uint8_t *)body);
    if (coap_send(session, pdu) == COAP_INVALID_MID) return 1;
    for (int waited = 0; answered == call && waited < WAIT_MS;) {
      int took = coap_io_process(context, 100);
      if (took < 0) return 1;
      waited += took;
    }
    if (answered == call) {
      fprintf(stderr, "no answer to call %d\n", call + 1);
      return 1;
    }
  }
  if (failed) fprintf(stderr, "%d of %d calls failed\n", failed, calls);
  coap_session_release(session);
  coap_free_context(context);
  coap_cleanup();
  return failed != 0;
}
