// Counts primes with the sieve of Eratosthenes: 168 up to 1000.
export function run(params) {
  const limit = Number(params.limit || 1000);
  const isComposite = new Uint8Array(limit + 1);
  let count = 0;
  for (let candidate = 2; candidate <= limit; candidate++) {
    if (isComposite[candidate]) continue;
    count++;
    for (let multiple = candidate * candidate; multiple <= limit; multiple += candidate) {
      isComposite[multiple] = 1;
    }
  }
  return { text: String(count) };
}
