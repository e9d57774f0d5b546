// A CoAP server on libcoap that answers /hello with "mote": what mote's CoAP is compared with.
// Usage: coap_server PORT
#include <arpa/inet.h>
#include <coap3/coap.h>
#include <stdlib.h>

static void hello(coap_resource_t *resource, coap_session_t *session, const coap_pdu_t *request,
                  const coap_string_t *query, coap_pdu_t *response) {
  (void)resource, (void)session, (void)request, (void)query;
  coap_pdu_set_code(response, COAP_RESPONSE_CODE_CONTENT);
  coap_add_data(response, 4, (const uint8_t *)"mote");
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  coap_startup();
  coap_context_t *context = coap_new_context(NULL);
  coap_address_t address;
  coap_address_init(&address);
  address.addr.sin.sin_family = AF_INET;
  address.addr.sin.sin_port = htons((unsigned short)atoi(argv[1]));
  address.addr.sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (!context || !coap_new_endpoint(context, &address, COAP_PROTO_UDP)) return 1;
  coap_resource_t *resource = coap_resource_init(coap_make_str_const("hello"), 0);
  coap_register_request_handler(resource, COAP_REQUEST_GET, hello);
  coap_add_resource(context, resource);
  while (coap_io_process(context, COAP_IO_WAIT) >= 0) continue;
  return 1;
}
