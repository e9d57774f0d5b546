// Counts the primes up to 1000 with the sieve of Eratosthenes.
export function countPrimes(limit) {
  const composite = new Uint8Array(limit + 1);
  let count = 0;
  for (let n = 2; n <= limit; n++) {
    if (composite[n]) continue;
    count++;
    for (let multiple = n * n; multiple <= limit; multiple += n) composite[multiple] = 1;
  }
  return count;
}

export default {
  fetch() {
    return new Response(String(countPrimes(1000)));
  },
};
