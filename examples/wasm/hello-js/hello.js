// A fetch handler, the form that service workers have.
addEventListener('fetch', (event) => event.respondWith(answer(event.request)));

async function answer(request) {
  const { pathname } = new URL(request.url);
  if (pathname.endsWith('/upper')) {
    return new Response((await request.text()).toUpperCase());
  }
  return new Response('hello from JavaScript');
}
