export default {
  fetch() {
    return new Response('mote');
  },
};
